# SPDX-License-Identifier: Apache-2.0
"""The partitions of one environment: memory, files, views, and where readers find them."""
