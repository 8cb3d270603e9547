# SPDX-License-Identifier: Apache-2.0
"""A file of a partition that is opened to be read, and the errors that name where it is.

No file, or one that cannot be opened or read, is a PartitionLostError that names partition, attempt, host and file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import PartitionLostError
from penstock.shuffle.ids import PartitionId


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Which partition a file should hold, and the host it is on."""

    partition: PartitionId
    host: str = ""

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> FileOrigin:
        """Inverse of `to_wire`; raises TypeError or ValueError on another shape."""
        partition, host = wire
        return cls(PartitionId.from_wire(tuple(partition)), str(host))

    def to_wire(self) -> tuple[Any, ...]:
        """As it travels to a reader, who may not know yet which attempt it reads."""
        return (self.partition.to_wire(), self.host)

    def __str__(self) -> str:
        on = f" on {self.host}" if self.host else ""
        return f"partition {self.partition} (attempt {self.partition.attempt}){on}"


def open_file(path: str, origin: FileOrigin) -> int:
    """A descriptor of the file, for reading; PartitionLostError where there is none to be had."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PartitionLostError(f"{origin}: its file {path} is gone") from error
    except OSError as error:
        raise unreadable(origin, path, error) from error


def read_at(descriptor: int, target: memoryview, offset: int) -> int:
    """Fill the target from there on; the bytes that there were. OSError where the file can't be read."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def unreadable(origin: FileOrigin, path: str, error: OSError) -> PartitionLostError:
    """The error of a file that is there and can't be read."""
    return PartitionLostError(f"{origin}: its file {path} cannot be read: {error}")
