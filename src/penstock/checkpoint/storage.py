# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a folder of any `pyarrow.fs` file system: complete or absent, checksummed, fenced, swept.

    <location>/owners/...                     who may commit (see `ownership`)
    <location>/chk-<number>-<epoch>/<task>    one task's snapshot: chunks one after the other
    <location>/chk-<number>-<epoch>/host-...  the snapshots of several tasks of a host, one after the other
    <location>/chk-<number>-<epoch>/_metadata what the checkpoint consists of; it exists when this file does
    <location>/logs-<epoch>/...               rows as they were given to channels (see `log_files`)

Tasks write their parts; the driver writes the metadata last, under another name first and then by a move. A recovery
takes a checkpoint only if its metadata and the sizes of its parts are right; the chunks prove themselves as they are
read. Where an older checkpoint could be taken in its place, all chunks are read before anything begins with it.
In a folder of this machine all files of a checkpoint are on the disk before it is complete (`disk`).
All calls block on the file system: they belong on a thread of their own.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import xxhash
from pyarrow import fs

from penstock.checkpoint.disk import Disk
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.kept_files import KeptFiles
from penstock.checkpoint.log_files import LogName, epoch_of, is_before, log_folder
from penstock.checkpoint.metadata import CheckpointMetadata, Chunk, PartHandle, decode, encode
from penstock.checkpoint.ownership import Ownership, Stamp
from penstock.shuffle.locations import at_uri, is_uri

METADATA = "_metadata"
_TRIES = 5
Buffer = bytes | bytearray | memoryview
Content = Buffer | Sequence[Buffer]
"""The bytes of a chunk, or parts of them, in order."""


def pieces_of(content: Content) -> Sequence[Buffer]:
    """The parts of a chunk's bytes, in order."""
    return [content] if isinstance(content, Buffer) else content


class Sink(Protocol):
    """What takes a part's bytes."""

    size: int
    """Those that it has."""

    def write(self, data: Buffer) -> None:
        """Append bytes; raises OSError."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A checkpoint that is there and can't be restored from, and why."""

    stamp: Stamp
    cause: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that can be restored from."""

    stamp: Stamp
    metadata: CheckpointMetadata


@dataclass(frozen=True, slots=True)
class Found:
    """What a recovery begins with: the newest good checkpoint, if any, and the newer ones that are not good.

    `kept` holds the newest ones that are good, newest first, as many as were asked for.
    """

    kept: tuple[Kept, ...] = ()
    unusable: tuple[Unusable, ...] = ()

    @property
    def stamp(self) -> Stamp | None:
        """Of the newest good one."""
        return self.kept[0].stamp if self.kept else None

    @property
    def metadata(self) -> CheckpointMetadata | None:
        """Of the newest good one."""
        return self.kept[0].metadata if self.kept else None


class PartFile:
    """A file of a checkpoint that is being written, for a `with` block. `path` is below the location."""

    def __init__(self, path: str, stream: pa.NativeFile, disk: Disk, place: str) -> None:
        self.path = path
        self.size = 0
        """Bytes so far."""
        self._stream = stream
        self._disk = disk
        self._place = place

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.close()
        else:
            self.give_up()

    def write(self, data: Buffer) -> None:
        """Append bytes; raises OSError."""
        self._stream.write(data)
        self.size += memoryview(data).nbytes

    def close(self) -> None:
        """Put what is left into the storage, and wait until all is there to stay; raises OSError."""
        self._stream.close()
        self._disk.sync_file(self._place)

    def give_up(self) -> None:
        """Nobody needs it: end it as it is; raises OSError."""
        self._stream.close()


def append(file: Sink, name: str, content: Content | Chunk) -> Chunk:
    """Append a chunk to a file; of one that is referred to nothing is written."""
    if isinstance(content, Chunk):
        return replace(content, name=name)
    offset, checksum = file.size, xxhash.xxh3_64()
    for data in pieces_of(content):
        file.write(data)
        checksum.update(data)
    return Chunk(name, offset, file.size - offset, checksum.intdigest())


class PartStorage:
    """A task's side: writes and reads parts. `location` is a URI, or a path of this machine."""

    def __init__(self, location: str) -> None:
        self.location = location
        if is_uri(location):
            try:
                self._fs, self._root = at_uri(location)
            except (ValueError, OSError) as error:
                raise CheckpointError(f"checkpointLocation {location!r}: {error}") from error
        else:
            self._fs, self._root = fs.LocalFileSystem(), location.rstrip("/")
        self._disk = Disk(self._fs)

    def write(self, stamp: Stamp, task: str, chunks: Iterable[tuple[str, Content | Chunk]]) -> PartHandle:
        """Write a task's snapshot; raises OSError as the file system does, with nothing left that counts.

        A content that is a chunk, with its file, is not written: it is referred to.
        """
        with self.open(stamp, task) as file:
            written = tuple([append(file, name, content) for name, content in chunks])
        return PartHandle(file.path, file.size, written)

    def open(self, stamp: Stamp, name: str) -> PartFile:
        """Begin a file of a checkpoint; raises OSError. It counts when it is closed."""
        return self._open(str(stamp), name)

    def open_log(self, name: LogName) -> PartFile:
        """Begin a file of a log; raises OSError. It counts when it is closed."""
        return self._open(name.folder, str(name))

    def _open(self, folder: str, name: str) -> PartFile:
        self._fs.create_dir(f"{self._root}/{folder}")
        place = f"{self._root}/{folder}/{name}"
        return PartFile(f"{folder}/{name}", self._fs.open_output_stream(place), self._disk, place)

    def read(self, part: PartHandle, names: Iterable[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """The chunks with these names (None: all) in order; raises CorruptCheckpointError that names the file.

        A part whose checkpoint has gone with it says nothing of the checkpoint: the location is away, an OSError.
        """
        wanted = part.chunks if names is None else [chunk for name in names for chunk in part.pieces(name)]
        for path, chunks in itertools.groupby(wanted, part.file_of):
            try:
                yield from self._read(path, chunks)
            except FileNotFoundError as error:
                metadata = f"{self._root}/{part.path.partition('/')[0]}/{METADATA}"
                if self._fs.get_file_info(metadata).type == fs.FileType.NotFound:
                    raise
                raise CorruptCheckpointError(f"{self.location}/{path} is missing") from error

    def _read(self, path: str, chunks: Iterable[Chunk]) -> Iterator[tuple[str, bytes]]:
        """These chunks of one file."""
        with self._fs.open_input_file(f"{self._root}/{path}") as file:
            for chunk in chunks:
                file.seek(chunk.offset)
                data = file.read(chunk.length)
                if len(data) != chunk.length or xxhash.xxh3_64_intdigest(data) != chunk.checksum:
                    raise CorruptCheckpointError(
                        f"{self.location}/{path}: chunk {chunk.name} ({chunk.length} bytes at {chunk.offset}) is"
                        " damaged"
                    )
                yield chunk.name, data


class CheckpointStorage(PartStorage):
    """The driver's side: claims the location, commits, finds what to restore, removes what is not needed."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._ownership = Ownership(self._fs, self._root, self._disk)
        self._files = KeptFiles()
        self._log_folders: set[str] = set()
        """Those in which files may lie."""

    def claim(self, keep: int = 1) -> Found:
        """Take the location over, and find the checkpoint to go on from, and up to `keep` in all.

        Raises CheckpointError where there are checkpoints and none is good: to begin anew would lose all of them.
        """
        if self._fs.get_file_info(self._root).type is fs.FileType.File:
            raise CheckpointError(f"checkpointLocation {self.location!r} is a file: give the query a folder")
        self._refuse_unowned()
        self._ownership.claim()
        found = self.newest(keep)
        if found.unusable and not found.kept:
            causes = "; ".join(f"{each.stamp}: {each.cause}" for each in found.unusable[:3])
            raise CheckpointError(
                f"none of the checkpoints at {self.location} can be restored from ({causes}): bring one back, or"
                " begin anew with another checkpointLocation"
            )
        self._ownership.go_on_from(found.stamp)
        for each in found.kept:
            self._files.keep(each.stamp, each.metadata)
        return found

    def _refuse_unowned(self) -> None:
        """Raise CheckpointError where there are checkpoints of drivers that `owners` does not know.

        None of these would count, and whoever claims the location removes what does not count.
        """
        stamps = self._stamps()  # before the owners, who are there before their checkpoints
        epochs = self._ownership.epochs() if stamps else set()
        unowned = [stamp for stamp in stamps if stamp.epoch not in epochs]
        if any(self._is_file(f"{stamp}/{METADATA}") for stamp in unowned):
            raise CheckpointError(
                f"{self.location}/owners does not say who made {unowned[-1]}: copy or move a checkpoint location as a"
                " whole. Bring the folder owners back, or begin anew with another checkpointLocation"
            )

    def stamp(self, number: int) -> Stamp:
        """What a checkpoint of this owner is called."""
        return Stamp(number, self._ownership.epoch)

    def commit(self, metadata: CheckpointMetadata) -> Stamp:
        """Make a checkpoint exist; raises FencedError where another driver has taken over, or OSError.

        Asked twice: an owner that is still the last one behind the move is followed by one that sees the checkpoint.
        """
        stamp = self.stamp(metadata.number)
        folder = f"{self._root}/{stamp}"
        self._fs.create_dir(folder)
        temporary = f"{folder}/{METADATA}.new"
        with self._fs.open_output_stream(temporary) as stream:
            stream.write(encode(metadata))
        self._disk.sync_file(temporary)
        self._ownership.check()
        self._fs.move(temporary, f"{folder}/{METADATA}")
        if metadata.is_logged:
            self._log_folders.add(log_folder(stamp.epoch))
            self._disk.sync_folder(f"{self._root}/{log_folder(stamp.epoch)}")
        self._disk.sync_folder(folder)
        self._disk.sync_folder(self._root)
        self._ownership.check()
        self._files.keep(stamp, metadata)
        return stamp

    def newest(self, keep: int = 1) -> Found:
        """The newest checkpoint of this location's lineage that is whole, or the newest `keep` of them."""
        kept: list[Kept] = []
        unusable: list[Unusable] = []
        stamps = self._ownership.lineage(self._stamps())
        for stamp in reversed(stamps):
            try:
                metadata = self._metadata(stamp)
                if not kept and stamp != stamps[0]:
                    self._read_through(metadata)
            except FileNotFoundError:
                continue  # never completed
            except (CorruptCheckpointError, OSError) as error:
                if not kept:
                    unusable.append(Unusable(stamp, str(error)))
                continue
            kept.append(Kept(stamp, metadata))
            if len(kept) >= keep:
                break
        return Found(tuple(kept), tuple(unusable))

    def history(self, *, read_through: bool = False) -> list[Kept | Unusable]:
        """All complete checkpoints that count, oldest first, each good or unusable. Needs no claim, changes nothing.

        `read_through`: also compare all bytes of their parts.
        """
        entries: list[Kept | Unusable] = []
        for stamp in self._ownership.lineage(self._stamps()):
            try:
                metadata = self._metadata(stamp)
                if read_through:
                    self._read_through(metadata)
            except FileNotFoundError:
                continue  # never completed
            except (CorruptCheckpointError, OSError) as error:
                entries.append(Unusable(stamp, str(error)))
            else:
                entries.append(Kept(stamp, metadata))
        return entries

    def discard(self, stamp: Stamp) -> None:
        """Remove a checkpoint, its metadata first, so that what is left of it never looks like one.

        Files that kept checkpoints refer to stay, and go with the last of these. Raises FencedError where another
        driver has taken over: that may go on from the very checkpoint, complete but for the look at who is the owner.
        """
        self._ownership.check()
        for folder in self._files.drop(stamp):
            if folder == stamp or not self._is_file(f"{folder}/{METADATA}"):
                self._clear(folder)
        self._clear_logs(self._files.newest)

    def discard_logs(self, before: int) -> None:
        """Remove what tasks that are gone have logged: files begun before this number that no checkpoint needs.

        Raises FencedError as `discard` does.
        """
        self._ownership.check()
        self._log_folders.add(log_folder(self._ownership.epoch))
        self._clear_logs(before)

    def sweep(self, keep: Iterable[Stamp]) -> list[Stamp]:
        """Remove all checkpoints of this and earlier owners but these, which this owner found or committed.

        Returns what was removed, also where files of it stay because one of these refers to them.
        """
        kept = set(keep)
        removed = [stamp for stamp in self._stamps() if stamp not in kept and stamp.epoch <= self._ownership.epoch]
        self._files.drop_all_but(kept)
        for stamp in removed:
            self._clear(stamp)
        own = self._ownership.epoch
        self._log_folders = {
            name for name in self._folders() if (found := epoch_of(name)) is not None and found < own
        }
        self._clear_logs(None)
        return removed

    def end(self) -> None:
        """The query has ended and nobody writes its logs any more: what no kept checkpoint needs of them goes.

        Raises FencedError where another driver has taken over: it may need what this one does not know.
        """
        folders = {*self._log_folders, log_folder(self._ownership.epoch)}
        found = self._fs.get_file_info([f"{self._root}/{folder}" for folder in folders])
        self._log_folders = {info.base_name for info in found if info.type == fs.FileType.Directory}
        if self._log_folders:  # a location may be gone with its query
            self._ownership.check()
            self._clear_logs(None)

    def _clear_logs(self, limit: int | None) -> None:
        """Remove files of logs that nobody needs; of this owner those begun before `limit`, None: all of them."""
        own = log_folder(self._ownership.epoch)
        for folder in sorted(self._log_folders):
            before = limit if folder == own else None
            needed, left = self._files.needed(folder), 0
            selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            for info in self._fs.get_file_info(selector):
                if info.base_name in needed or (before is not None and not is_before(info.base_name, before)):
                    left += 1
                    continue
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_file(info.path)
            if not left and before is None:
                self._log_folders.discard(folder)
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_dir(f"{self._root}/{folder}")

    def _clear(self, folder: Stamp) -> None:
        """Remove what nobody needs of a folder."""
        path, needed = f"{self._root}/{folder}", self._files.needed(str(folder))
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{path}/{METADATA}")
        with contextlib.suppress(FileNotFoundError):
            if not needed:
                self._delete(path)
                return
            for info in self._fs.get_file_info(fs.FileSelector(path)):
                if info.base_name not in needed:
                    self._fs.delete_file(info.path)

    def _delete(self, path: str) -> None:
        """Remove a folder; a task that was late to hear that it is not needed may write into it meanwhile."""
        for _ in range(_TRIES - 1):
            try:
                self._fs.delete_dir(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return
        self._fs.delete_dir(path)

    def _is_file(self, path: str) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{path}").type == fs.FileType.File)

    def _read_through(self, metadata: CheckpointMetadata) -> None:
        """Raise CorruptCheckpointError where a chunk is not as it was written."""
        for part in metadata.parts.values():
            for _ in self.read(part):
                pass

    def _metadata(self, stamp: Stamp) -> CheckpointMetadata:
        path = f"{stamp}/{METADATA}"
        with self._fs.open_input_stream(f"{self._root}/{path}") as stream:
            metadata = decode(stream.read(), f"{self.location}/{path}")
        self._look_at_files(metadata)
        return metadata

    def _look_at_files(self, metadata: CheckpointMetadata) -> None:
        """Raise CorruptCheckpointError where a file that it needs is away, or not as long as it was."""
        own = {part.path: part.size for part in metadata.parts.values()}
        needed = {path: size for part in metadata.parts.values() for path, size in part.referred.items()} | own
        found = self._fs.get_file_info([f"{self._root}/{path}" for path in needed])
        for (path, size), info in zip(needed.items(), found, strict=True):
            if info.type != fs.FileType.File:
                raise CorruptCheckpointError(f"{self.location}/{path} is missing: {size} bytes were written")
            # What others refer to may have grown since.
            if info.size < size or (path in own and info.size != size):
                raise CorruptCheckpointError(f"{self.location}/{path} has {info.size} bytes: {size} were written")

    def _stamps(self) -> list[Stamp]:
        return sorted(stamp for stamp in map(Stamp.of, self._folders()) if stamp is not None)

    def _folders(self) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.Directory]
