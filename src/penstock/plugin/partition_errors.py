# SPDX-License-Identifier: Apache-2.0
"""The partition that an error speaks of, where the JobMaster reads it: its producer runs again."""

from __future__ import annotations

from typing import TypeVar

from penstock.errors import PenstockError
from penstock.shuffle import PartitionId

E = TypeVar("E", bound=PenstockError)


def about(partition: PartitionId, error: E) -> E:
    """The error, with this partition in it."""
    error.partition = partition.to_wire()
    return error


def unreadable(partition: PartitionId, kind: type[E], why: str) -> E:
    """The error of a kind that says why a partition can't be read, such as "was released"."""
    return about(partition, kind(f"partition {partition} {why}"))
