# SPDX-License-Identifier: Apache-2.0
"""The `objects` service: partitions as objects of a store that all hosts reach, without a process of its own."""

from __future__ import annotations

from penstock.services.objects.service import ObjectsShuffleService

__all__ = ["ObjectsShuffleService"]
