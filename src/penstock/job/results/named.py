# SPDX-License-Identifier: Apache-2.0
"""A result that a service keeps under a name, longer than its application."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.shuffle import ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class NamedResult:
    """Its name at a service, its schema as Arrow writes one, and its partitions."""

    name: str
    service: str
    schema: bytes
    partitions: tuple[ShuffleDescriptor, ...]
