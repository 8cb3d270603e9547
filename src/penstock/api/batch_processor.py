# SPDX-License-Identifier: Apache-2.0
"""The class that users derive their batch-level processors from."""

from penstock.stream.state.batch_handle import BatchProcessor

__all__ = ["BatchProcessor"]
