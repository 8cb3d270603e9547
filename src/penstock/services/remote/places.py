# SPDX-License-Identifier: Apache-2.0
"""The words of a descriptor: how many subpartitions a partition has, and whether they share one file. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import PartitionError, ProtocolError
from penstock.plugin.partition_errors import about
from penstock.shuffle import ChannelDescriptor

_LOCATION = re.compile(r"(\d{1,9})/(\d{1,9})(?:@([0-9a-f]{1,64}))?")


@dataclass(frozen=True, slots=True)
class Breadth:
    """The subpartitions of a partition, and their merged files: as many, or one where all goes to all.

    `kept` is the identity of the result that it is of, if that is kept by name.
    """

    subpartitions: int
    files: int
    kept: str = ""

    @classmethod
    def from_text(cls, text: str) -> Breadth:
        """Inverse of `str`; ProtocolError for another text."""
        found = _LOCATION.fullmatch(text)
        if found is None:
            raise ProtocolError(f"{text!r:.200} is no place of the remote shuffle service")
        return cls(int(found[1]), int(found[2]), found[3] or "")

    def __str__(self) -> str:
        return f"{self.subpartitions}/{self.files}{'@' if self.kept else ''}{self.kept}"

    def of_range(self, first: int, count: int) -> tuple[range, int]:
        """The files of a range of subpartitions, and how often each row is meant; ValueError for none."""
        if first < 0 or count < 1 or first + count > self.subpartitions:
            raise ValueError(
                f"subpartitions {first} to {first + count - 1} were asked for, it has 0 to {self.subpartitions - 1}"
                f" ({self.subpartitions} subpartitions)"
            )
        if self.files < self.subpartitions:
            return range(1), count
        return range(first, first + count), 1


def files_of(channel: ChannelDescriptor) -> tuple[range, int, str]:
    """The merged files of a channel, how often each row is meant, and the identity of the result if it is kept.

    PartitionError for a range that is none.
    """
    source = channel.source
    try:
        breadth = Breadth.from_text(source.location)
        return *breadth.of_range(channel.subpartition, channel.count), breadth.kept
    except (ValueError, ProtocolError) as error:
        raise about(
            source.partition, PartitionError(f"partition {source.partition} can't be read: {error}")
        ) from error
