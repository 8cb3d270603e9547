# SPDX-License-Identifier: Apache-2.0
"""The words that users write for streaming queries: `readStream`, `writeStream`, the handle of a query, `streams`."""
