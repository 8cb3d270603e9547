# SPDX-License-Identifier: Apache-2.0
"""The data files of a partition that its task stores as a whole, and the index that makes them readable.

Rules:

- Whole messages of the record stream (`record.framing`) are appended, so a reader elsewhere is sent them as they lie
  in the file, and a range of subpartitions may be read in any order.
- An extent is closed where the next message is another subpartition's or would make it longer than `EXTENT_BYTES`.
  So one file for all takes rows in long sorted regions, or its extents are short; a file for each takes them as they
  come.
- Bytes are handed to a file in runs of a MiB or a thousand parts, whichever comes first, or at `flush`.
- The index is written last: where it is, the partition is complete. `abort`, and the failure of a write to a file,
  leave nothing of that file behind; `abort` removes all of them.
"""

from __future__ import annotations

import struct
from pathlib import Path

import xxhash

from penstock.partition.extents import BROADCAST, EXTENT_BYTES, INDEX_NAME, data_name
from penstock.partition.file_header import DATA_MAGIC, FileHeader, pack_header
from penstock.partition.file_output import FileOptions, FileOutput
from penstock.partition.index import ExtentLists, write_index
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import Sums, sum_of

MESSAGE = struct.Struct("<QQ")
"""The head of a message: bytes of payload, xxh3_64 of it."""

_RUN_BYTES = 1 << 20
_RUN_PARTS = 1000
_ZEROES = [bytes(count) for count in range(8)]


class WholeFile:
    """One data file, whose extents are noted in `lists`."""

    __slots__ = ("_begin", "_digest", "_file", "_lists", "_number", "_parts", "_position", "_size", "_target")

    def __init__(self, file: FileOutput, number: int, lists: ExtentLists) -> None:
        self._file = file
        self._number = number
        self._lists = lists
        self._parts: list[bytes | memoryview] = []
        self._size = 0  # of the parts
        self._target = BROADCAST
        self._begin = self._position = file.size
        self._digest = xxhash.xxh3_64()

    @property
    def file(self) -> FileOutput:
        """The file below."""
        return self._file

    def append(self, target: int, payload: memoryview) -> tuple[int, int]:
        """Append a message of this payload, which stays as it is until it is handed over; its bytes and checksum.

        PenstockError where the file takes no more.
        """
        length = len(payload)
        padding = -length % 8
        size = MESSAGE.size + length + padding
        if target != self._target or self._position + size - self._begin > EXTENT_BYTES:
            self.close_extent()
            self._target = target
        checksum: int = xxhash.xxh3_64_intdigest(payload)
        head = MESSAGE.pack(length, checksum)
        update = self._digest.update
        update(head)
        update(payload)
        parts = self._parts
        parts.append(head)
        parts.append(payload)
        if padding:
            update(_ZEROES[padding])
            parts.append(_ZEROES[padding])
        self._position += size
        self._size += size
        if self._size >= _RUN_BYTES or len(parts) >= _RUN_PARTS:
            self.flush()
        return length, checksum

    def close_extent(self) -> None:
        """End the extent: the next message begins another."""
        begin, end = self._begin, self._position
        if end > begin:
            self._lists.add(self._target, self._number, begin, end - begin, self._digest.intdigest())
            self._begin = end
            self._digest.reset()

    def flush(self) -> None:
        """Hand over what waits."""
        parts, self._parts, self._size = self._parts, [], 0
        self._file.append(parts)


class WholeFiles:
    """`files` data files of one partition, their extents, and what each subpartition holds."""

    __slots__ = ("_all", "_each", "_files", "_folder", "_header", "_index_size", "_lists", "_options")

    def __init__(self, folder: Path, header: FileHeader, files: int, options: FileOptions) -> None:
        if (count := header.subpartitions) < 1:
            raise ValueError(f"partition {header.partition} has {count} subpartitions, it must be at least one")
        self._folder = folder
        self._header = header
        self._options = options
        self._files: list[WholeFile] = []
        self._lists = ExtentLists(header.subpartitions)
        self._each = [Sums() for _ in range(header.subpartitions)]
        self._all = Sums()
        self._index_size = 0
        start = pack_header(DATA_MAGIC, header)
        try:
            for number in range(files):
                name = data_name(number)
                opened = options.opened.get(name, -1)
                file = FileOutput(folder / name, header.partition, options.reserve, opened, is_read_meanwhile=True)
                file.append([start])  # a file that can't take it removes itself
                self._files.append(WholeFile(file, number, self._lists))
        except BaseException:
            self.abort()
            raise

    def __getitem__(self, number: int) -> WholeFile:
        return self._files[number]

    @property
    def is_open(self) -> bool:
        """True if they can be written to."""
        return all(each.file.is_open for each in self._files)

    @property
    def bytes_on_disk(self) -> int:
        """The bytes that all files take so far."""
        return sum(each.file.size for each in self._files) + self._index_size

    @property
    def writes(self) -> int:
        """The number of times that the file system was called to write rows."""
        return sum(each.file.writes for each in self._files)

    def append(self, number: int, target: int, rows: int, payload: memoryview) -> None:
        """Append a batch's payload for a subpartition, or for all, to a file; see `WholeFile.append`."""
        length, checksum = self._files[number].append(target, payload)
        sums = self._all if target == BROADCAST else self._each[target]
        sums.add(rows, length, checksum)

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Write what waits, then the index; what each subpartition holds. Files are removed where that fails.

        The bytes are those of the payloads as stored; a message for all counts for each subpartition.
        """
        if not self.is_open:
            raise ValueError(f"the partition in {self._folder} is finished or given up")
        try:
            for each in self._files:
                each.close_extent()
                each.flush()
                each.file.seal()
            options = self._options
            opened = options.opened.get(INDEX_NAME, -1)
            self._index_size = write_index(self._folder, self._header, self._lists, options.reserve, opened)
        except BaseException:
            self.abort()
            raise
        for each in self._files:
            each.file.keep()
        ends = [each.end_of_partition() for each in self._each]
        to_all = self._all.end_of_partition()
        return tuple([sum_of((each, to_all)) for each in ends] if to_all.rows or to_all.bytes else ends)

    def abort(self) -> None:
        """Give up: all files go; idempotent, and without effect after `finish`."""
        for each in self._files:
            each.file.abort()
