# SPDX-License-Identifier: Apache-2.0
"""The description of a result that a service keeps: its schema, and the words that find its partitions."""

from __future__ import annotations

from collections.abc import Iterable

import msgpack

from penstock.errors import ProtocolError
from penstock.shuffle import ShuffleDescriptor


def packed_result(schema: bytes, partitions: Iterable[ShuffleDescriptor]) -> bytes:
    """A description as bytes, for the service to keep."""
    data: bytes = msgpack.packb((schema, [each.to_wire() for each in partitions]))
    return data


def unpacked_result(name: str, description: bytes) -> tuple[bytes, list[ShuffleDescriptor]]:
    """Inverse of `packed_result`; ProtocolError for what is none."""
    try:
        schema, wires = msgpack.unpackb(description, use_list=False)
        return schema, [ShuffleDescriptor.from_wire(wire) for wire in wires]
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"the description of the result {name} can't be read: {error}") from error
