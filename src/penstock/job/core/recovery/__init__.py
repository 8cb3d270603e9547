# SPDX-License-Identifier: Apache-2.0
"""What runs again when something fails, and when."""
