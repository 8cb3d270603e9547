# SPDX-License-Identifier: Apache-2.0
"""The files of a blocking partition as one thing: which there are, where, and how a range of subpartitions is read.

Two layouts: `hash` has a file for each subpartition (`result_file`), `sort_merge` two files for all of them
(`sort_merge_writer`). Both lie in a folder of the partition's own, so that removing the folder removes the partition,
begun files included. A reader asks for a range and need not know the layout: the range is read as if it were one
subpartition, its batches in order of the subpartitions (hash) or of the regions (sort-merge).

The modules that read files are imported when a range is opened: environments import this, and few open one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.partition.file_blocks import BEFORE_MESSAGE
from penstock.partition.file_input import FileOrigin
from penstock.shuffle.descriptors import PartitionDescriptor
from penstock.shuffle.errors import PartitionLostError
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.kinds import PartitionKind
from penstock.shuffle.sums import Sums

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.partition.result_file import ResultFileReader


class Layout(Enum):
    """The layouts of a partition in files."""

    HASH = "hash"
    SORT_MERGE = "sort_merge"


def layout_of(partition: PartitionDescriptor, hash_max: int) -> Layout:
    """Sort-merge where that kind was asked for and it pays; else hash.

    It pays with more than `hash_max` subpartitions, and for what is broadcast to several: that is stored once.
    """
    pays = partition.subpartitions > (1 if partition.broadcast else hash_max)
    return Layout.SORT_MERGE if partition.kind is PartitionKind.BLOCKING_SORT_MERGE and pays else Layout.HASH


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """All files of one partition."""

    layout: Layout
    folder: Path
    subpartitions: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """A file for each subpartition; or the data file and the index."""
        if self.layout is Layout.SORT_MERGE:
            return (self.folder / "data", self.folder / "index")
        return tuple(self.folder / str(subpartition) for subpartition in range(self.subpartitions))


@dataclass(frozen=True, slots=True)
class StoredRange:
    """`count` subpartitions from `first` on, in the files of `paths`; of hash files those of the range only."""

    layout: Layout
    paths: tuple[Path, ...]
    first: int
    count: int
    origin: FileOrigin

    @classmethod
    def of(cls, files: StoredFiles, first: int, count: int, origin: FileOrigin) -> StoredRange:
        """A range of a partition's files."""
        paths = files.paths
        if files.layout is Layout.HASH:
            paths = paths[first : first + count]
        return cls(files.layout, paths, first, count, origin)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> StoredRange:
        """Inverse of `to_message`; raises KeyError, TypeError or ValueError on another shape."""
        paths = tuple(Path(path) for path in message["paths"])
        origin = FileOrigin.from_wire(message["origin"])
        return cls(Layout(message["layout"]), paths, int(message["first"]), int(message["count"]), origin)

    def to_message(self) -> dict[str, Any]:
        """The message for a reader on the same host."""
        paths = tuple(str(path) for path in self.paths)
        return {
            "layout": self.layout.value,
            "paths": paths,
            "first": self.first,
            "count": self.count,
            "origin": self.origin.to_wire(),
        }

    @property
    def start(self) -> str:
        """The file that is read first."""
        return str(self.paths[0])

    def open(self) -> OpenRange:
        """The range, open; PartitionLostError where a file is gone, IncompleteDataError where one is damaged."""
        if self.layout is Layout.SORT_MERGE:
            return _SortMergeRange(self)
        return _HashRange(self)


class Stretch(NamedTuple):
    """Bytes of a file that a range reads in one go; `times` where each block is meant for several subpartitions."""

    file: str
    begin: int
    end: int
    times: int = 1


class OpenStream(Protocol):
    """A range that is read once, from its beginning, as the record stream that a reader elsewhere gets."""

    @property
    def prefix(self) -> int:
        """The bytes that each message has in its file before what is sent of it."""

    @property
    def stretches(self) -> list[Stretch]:
        """The parts of files that hold the range, in the order they are read."""

    def messages(self) -> Iterator[bytes | memoryview]:
        """The range's messages, or other pieces of its stream, each checked."""


class StreamedRange(Protocol):
    """A range of a finished partition of any layout, to be opened for a reader elsewhere or told to one here."""

    @property
    def start(self) -> str:
        """The file that is read first."""

    def to_message(self) -> dict[str, Any]:
        """The message for a reader on the same host."""

    def open(self) -> OpenStream:
        """The range, open; PartitionLostError where a file is gone, IncompleteDataError where one is damaged."""


class OpenRange(OpenStream, Protocol):
    """A range of blocks, which can be read as batches too."""

    @property
    def end(self) -> EndOfPartition:
        """The sums of the range, once all of it was read."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The range's batches, which lie over the files' maps."""


class _HashRange:
    """Files of one subpartition each, one after the other."""

    prefix = BEFORE_MESSAGE

    def __init__(self, stored: StoredRange) -> None:
        self._stored = stored
        self._sums = Sums()

    @property
    def stretches(self) -> list[Stretch]:
        return [Stretch(str(path), 0, self._size(path)) for path in self._stored.paths]

    @property
    def end(self) -> EndOfPartition:
        return self._sums.end_of_partition()

    def batches(self) -> Iterator[pa.RecordBatch]:
        for reader in self._readers():
            yield from reader

    def messages(self) -> Iterator[bytes | memoryview]:
        for reader in self._readers():
            yield from reader.messages()

    def _readers(self) -> Iterator[ResultFileReader]:
        from penstock.partition.result_file import ResultFileReader

        for path in self._stored.paths:
            with ResultFileReader(path, self._stored.origin) as reader:
                yield reader
                found = reader.summary
            self._sums.add(found.rows, found.bytes, found.checksum)

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError as error:
            raise PartitionLostError(f"{self._stored.origin}: its file {path} is gone") from error


class _SortMergeRange:
    """A range of a data file."""

    prefix = BEFORE_MESSAGE

    def __init__(self, stored: StoredRange) -> None:
        from penstock.partition.sort_merge_reader import SortMergeReader
        from penstock.partition.sort_merge_writer import SortMergePaths

        self._stored = stored
        self._first = stored.first
        self._count = stored.count
        self._reader = SortMergeReader(SortMergePaths(*stored.paths), stored.origin)

    @property
    def stretches(self) -> list[Stretch]:
        data = str(self._reader.paths.data)
        found = self._reader.stretches(self._first, self._count)
        return [Stretch(data, stretch.begin, stretch.end, stretch.times) for stretch in found]

    @property
    def end(self) -> EndOfPartition:
        return self._reader.end(self._first, self._count)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._reader.batches(self._first, self._count)

    def messages(self) -> Iterator[bytes | memoryview]:
        return self._reader.messages(self._first, self._count)
