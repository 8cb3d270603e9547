# SPDX-License-Identifier: Apache-2.0
"""The values that a client gives out: parts that were written, and results that are kept under a name. Picklable.

A part of `external` that was kept by name has in its words the key that reads it, as those of a Spark job have; no
other part has a secret in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.shuffle import ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class Part:
    """A partition that is complete: how it is found, its schema as IPC bytes, and how many subpartitions it has.

    `rows` and `bytes` (of payload, as stored) are those of each subpartition; empty where they were not counted.
    """

    descriptor: ShuffleDescriptor = field(repr=False)
    encoded: bytes = field(repr=False)
    subpartitions: int = 1
    rows: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The schema of its rows."""
        return pa.ipc.read_schema(pa.py_buffer(self.encoded))


@dataclass(frozen=True, slots=True)
class Kept:
    """A result under a name: its partitions in order, each with one subpartition."""

    name: str
    encoded: bytes = field(repr=False)
    parts: tuple[Part, ...]

    @property
    def schema(self) -> pa.Schema:
        """The schema of its rows."""
        return pa.ipc.read_schema(pa.py_buffer(self.encoded))

    @property
    def partitions(self) -> int:
        """The number of its partitions."""
        return len(self.parts)

    @classmethod
    def of(cls, name: str, encoded: bytes, descriptors: list[ShuffleDescriptor]) -> Kept:
        """The result with these partitions."""
        return cls(name, encoded, tuple(Part(each, encoded) for each in descriptors))


def one_schema(parts: tuple[Part, ...]) -> bytes:
    """The schema that all these parts have; SchemaError where there is none, or more than one."""
    found = {part.encoded: part for part in parts}
    if len(found) == 1:
        return parts[0].encoded
    told = "; ".join(" ".join(str(part.schema).split()) for part in found.values()) or "there is no part"
    raise SchemaError(f"the parts must have one schema: {told}")
