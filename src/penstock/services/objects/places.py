# SPDX-License-Identifier: Apache-2.0
"""The objects of partitions: their names, what their being there means, and the index of one.

    <uri>/penstock-<application>/<job>/<dataset>.<index>.<attempt>/
        named               the driver has named it
        open.<environment>  its writer has begun, on this host
        data                blocks (`penstock.remote.blocks`), one after the other
        index               written last: where it is, the partition is complete
        failed, released    why there are no rows: a cause, or nothing

A store lists and reads what was written before, as S3 does, and shows an object when it is whole. There is no lock.
In a folder of a file system small objects are written aside, as `<name>.partial`, and renamed; folders and files
are their user's alone.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import xxhash
from pyarrow import fs

from penstock.errors import IncompleteDataError, ProtocolError, SettingError, StorageError
from penstock.machine.locations import at_uri, here, is_here, is_uri
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId

NAMED, OPEN, DATA, INDEX, FAILED, RELEASED = "named", "open.", "data", "index", "failed", "released"
_PARTIAL = ".partial"
_HEAD = struct.Struct("<IIIQ")
_VERSION = 1
_BLOCK = struct.Struct("<IIQ")
_SUM = struct.Struct("<QQQ")


class BlockSpan(NamedTuple):
    """The bytes of a block: its file, their number with its head, their offset."""

    file: int
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """The blocks of a partition, and the sums of each of its files."""

    blocks: tuple[BlockSpan, ...]
    sums: tuple[EndOfPartition, ...]

    def packed(self) -> bytes:
        """The bytes of the index."""
        body = b"".join(_BLOCK.pack(*block) for block in self.blocks)
        body += b"".join(_SUM.pack(each.rows, each.bytes, each.checksum) for each in self.sums)
        return _HEAD.pack(_VERSION, len(self.blocks), len(self.sums), xxhash.xxh3_64_intdigest(body)) + body

    @classmethod
    def read(cls, data: memoryview) -> PartitionIndex:
        """Inverse of `packed`; IncompleteDataError for damage."""
        if len(data) < _HEAD.size:
            raise IncompleteDataError(f"its index has {len(data)} bytes")
        version, blocks, sums, checksum = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        end = blocks * _BLOCK.size
        if version != _VERSION or len(body) != end + sums * _SUM.size or xxhash.xxh3_64_intdigest(body) != checksum:
            raise IncompleteDataError("its index is damaged")
        spans = tuple(BlockSpan(*each) for each in _BLOCK.iter_unpack(body[:end]))
        return cls(spans, tuple(EndOfPartition(*each) for each in _SUM.iter_unpack(body[end:])))


class ObjectFolder:
    """The objects of one application."""

    def __init__(self, uri: str, application: str) -> None:
        if not uri:
            raise SettingError(
                "the service objects has no place: set spark.penstock.objects.uri, such as s3://bucket/p"
            )
        try:
            self.filesystem, root = at_uri(uri) if is_uri(uri) else (here(), os.path.abspath(uri))  # noqa: PTH100 - links stay
        except (ValueError, OSError) as error:
            raise SettingError(f"spark.penstock.objects.uri={uri} can't be used: {error}") from error
        self.root = f"{root.rstrip('/')}/penstock-{quote(application, safe='')}"

    def place(self, partition: PartitionId) -> str:
        """The folder of a partition: no part of its name leads elsewhere."""
        name = f"{partition.dataset}.{partition.index}.{partition.attempt}"
        return f"{self.job(partition.job)}/{quote(name, safe='')}"

    def job(self, job: str) -> str:
        """The folder of a job."""
        return f"{self.root}/{quote(job, safe='')}"

    def names(self, folder: str) -> set[str]:
        """The names of the objects in a folder; none where it is not there."""
        selector = fs.FileSelector(folder, allow_not_found=True)
        return {info.base_name for info in self.filesystem.get_file_info(selector)}

    def write(self, path: str, data: bytes = b"") -> None:
        """Write a small object, which is seen whole or not at all; StorageError where the store does not take it."""
        try:
            if not is_here(self.filesystem):
                with self.filesystem.open_output_stream(path) as stream:
                    stream.write(data)
                return
            with self.output(path + _PARTIAL) as stream:
                stream.write(data)
            self.filesystem.move(path + _PARTIAL, path)
        except OSError as error:
            raise StorageError(f"{path} can't be written: {error}") from error

    def output(self, path: str) -> pa.NativeFile:
        """A stream into an object; in a folder of a file system it is this user's alone."""
        if is_here(self.filesystem):
            own = [each for each in Path(path).parents if str(each).startswith(self.root)]
            own[-1].parent.mkdir(parents=True, exist_ok=True)
            for folder in reversed(own):
                folder.mkdir(0o700, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return self.filesystem.open_output_stream(path)

    def read(self, path: str) -> bytes:
        """A small object; FileNotFoundError, OSError."""
        with self.filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())

    def release(self, partition: PartitionId) -> None:
        """Remove the rows of a partition that has any, and leave the word."""
        place = self.place(partition)
        names = self.names(place)
        if not names or RELEASED in names:
            return
        self.write(f"{place}/{RELEASED}")
        self.remove(place, names - {NAMED, FAILED, RELEASED})

    def remove(self, place: str, names: set[str]) -> None:
        """Remove these objects; the index first, so that no reader begins."""
        for name in sorted(names, key=lambda each: each != INDEX):
            try:
                self.filesystem.delete_file(f"{place}/{name}")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(f"{place}/{name} can't be removed: {error}") from error

    def remove_folder(self, folder: str) -> None:
        """Remove all below a folder; idempotent."""
        try:
            self.filesystem.delete_dir_contents(folder, missing_dir_ok=True)
            self.filesystem.delete_dir(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{folder} can't be removed: {error}") from error

    def held(self, environment: str) -> list[PartitionId]:
        """The partitions that were written on this host, and have rows."""
        selector = fs.FileSelector(self.root, allow_not_found=True, recursive=True)
        by_place: dict[str, set[str]] = {}
        for info in self.filesystem.get_file_info(selector):
            if info.is_file:
                by_place.setdefault(info.path.rpartition("/")[0], set()).add(info.base_name)
        gone = {FAILED, RELEASED}
        opened = OPEN + quote(environment, safe="")
        return [_partition_of(place) for place, names in by_place.items() if opened in names and not names & gone]


def _partition_of(place: str) -> PartitionId:
    try:
        dataset, index, attempt = unquote(place.rpartition("/")[2]).rsplit(".", 2)
        return PartitionId(DatasetId.of(dataset), int(index), int(attempt))
    except ValueError as error:
        raise ProtocolError(f"{place} is no place of a partition") from error
