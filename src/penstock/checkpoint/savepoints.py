# SPDX-License-Identifier: Apache-2.0
"""Savepoints: a checkpoint as a folder of its own, which refers to nothing elsewhere and which no query removes.

    <folder>/parts/<number>   one task's snapshot with its rows in flight: chunks one after the other
    <folder>/_metadata        as a checkpoint's; it exists when the savepoint does

All bytes of a checkpoint are copied, chunk by chunk, and compared with their checksums on the way. The metadata is
written last, in one step: a savepoint whose writer died has none and is refused by name. One that can't be written to
its end is removed. A query that begins with a savepoint copies it to its checkpoint location first, so neither needs
the other from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import xxhash
from pyarrow import fs

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle, decode, encode
from penstock.checkpoint.needed_files import look_at_files
from penstock.checkpoint.patience import patiently
from penstock.checkpoint.removal import METADATA
from penstock.checkpoint.storage import PartFile, PartStorage, append

PARTS = "parts"


@dataclass(frozen=True, slots=True)
class FoundSavepoint:
    """A savepoint that is whole: its metadata, and a name that no other savepoint has."""

    identity: str
    metadata: CheckpointMetadata


class SavepointFolder(PartStorage):
    """One folder, which is to hold a savepoint or does."""

    def prepare(self) -> None:
        """Make the folder; raises CheckpointError where it holds anything, or can't be made."""
        try:
            found = self._fs.get_file_info(self._root)
            if found.type == fs.FileType.File:
                raise CheckpointError(f"savepoint {self.location!r} is a file: name a folder that is not there yet")
            inside = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
            if inside:
                raise CheckpointError(
                    f"savepoint {self.location!r} is a folder with {inside[0].base_name!r} in it: a savepoint is"
                    " written once, so name a folder that is not there yet"
                )
            self._fs.create_dir(f"{self._root}/{PARTS}")
        except OSError as error:
            raise CheckpointError(f"savepoint {self.location!r} can't be written: {error}") from error

    def save(self, source: PartStorage, metadata: CheckpointMetadata) -> None:
        """Copy a checkpoint into the prepared folder; raises CheckpointError, and nothing is left then.

        `source` is the location where its files lie.
        """
        try:
            parts = copied(source, metadata.parts, lambda name: self._open(PARTS, name))
            self._disk.sync_folder(f"{self._root}/{PARTS}")
            temporary = f"{self._root}/{METADATA}.new"
            with self._fs.open_output_stream(temporary) as stream:
                stream.write(encode(replace(metadata, parts=parts)))
            self._disk.sync_file(temporary)
            self._fs.move(temporary, f"{self._root}/{METADATA}")
            self._disk.sync_folder(self._root)
            with contextlib.suppress(PermissionError):  # one may not look into the folder above
                self._disk.sync_folder(str(PurePosixPath(self._root).parent))
        except BaseException as error:
            self.remove()
            if isinstance(error, (OSError, CheckpointError)):
                raise CheckpointError(f"no savepoint was written at {self.location}: {error}") from error
            raise

    def remove(self) -> None:
        """Remove what is there of a savepoint, its metadata first, as far as that is possible."""
        for name in (METADATA, f"{METADATA}.new"):
            with contextlib.suppress(OSError):
                self._fs.delete_file(f"{self._root}/{name}")
        with contextlib.suppress(OSError):
            self._fs.delete_dir(f"{self._root}/{PARTS}")
        with contextlib.suppress(OSError):
            if not self._fs.get_file_info(fs.FileSelector(self._root)):
                self._fs.delete_dir(self._root)

    def find(self) -> FoundSavepoint:
        """The savepoint; raises CheckpointError where there is none, it is damaged, or it can't be read."""
        try:
            return patiently(self._find, self._waits)
        except OSError as error:
            raise CheckpointError(f"the savepoint at {self.location} can't be read: {error}") from error

    @property
    def is_savepoint(self) -> bool:
        """True if the folder holds the metadata of a savepoint; raises OSError."""
        return bool(self._fs.get_file_info(f"{self._root}/{METADATA}").type == fs.FileType.File)

    def _find(self) -> FoundSavepoint:
        names = [f"{self._root}/{name}" for name in (METADATA, PARTS, "owners")]
        metadata, parts, owners = [info.type for info in self._fs.get_file_info(names)]
        if metadata == fs.FileType.File:
            return self._read_metadata()
        if parts != fs.FileType.NotFound:
            raise CorruptCheckpointError(
                f"the savepoint at {self.location} was not written to its end: it has no {METADATA}. Take another one"
            )
        if owners != fs.FileType.NotFound:
            raise CheckpointError(
                f"{self.location} is a checkpointLocation and no savepoint: give it as checkpointLocation"
            )
        raise CheckpointError(f"there is no savepoint at {self.location}: it has no file {METADATA}")

    def _read_metadata(self) -> FoundSavepoint:
        with self._fs.open_input_stream(f"{self._root}/{METADATA}") as stream:
            data = stream.read()
        metadata = decode(data, f"{self.location}/{METADATA}")
        look_at_files(self._fs, self._root, metadata, self.location)
        return FoundSavepoint(xxhash.xxh3_128_hexdigest(data), metadata)


def copied(
    source: PartStorage, parts: Mapping[str, PartHandle], open_file: Callable[[str], PartFile]
) -> dict[str, PartHandle]:
    """Copy all chunks of some parts, each part into a file of its own; raises CorruptCheckpointError or OSError.

    `open_file` begins the file of a name. A piece of content is in memory at a time.
    """
    found: dict[str, PartHandle] = {}
    for number, (name, part) in enumerate(sorted(parts.items()), 1):
        with open_file(f"{number:06d}") as file:
            data = source.read(part)
            chunks = tuple(
                [
                    replace(append(file, chunk.name, content), first=chunk.first, rows=chunk.rows)
                    for chunk, (_, content) in zip(part.chunks, data, strict=True)
                ]
            )
        found[name] = replace(part, path=file.path, size=file.size, chunks=chunks)
    return found
