# SPDX-License-Identifier: Apache-2.0
"""The `remote` service: rows are pushed to workers of the remote shuffle service, and read from them."""

from __future__ import annotations

from penstock.services.remote.service import RemoteShuffleService

__all__ = ["RemoteShuffleService"]
