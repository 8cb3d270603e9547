# SPDX-License-Identifier: Apache-2.0
"""The positions at which the sources of a query begin, written down before the first row of theirs leaves.

    <location>/first-positions    by the uid of a source: what it reads, and the bytes of its position

A source may begin at "now": at the latest offset, at the newest version of a table. A query that fails, or is killed,
before its first checkpoint would ask again, and "now" would be later: the rows between would never be read. So they
are asked for once, and count for all drivers until a checkpoint has a position of the source.

The file is whole or absent: on a file system it is moved to its name when it is on the disk, in an object store it is
one put. Only the owner of the location writes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack
import xxhash
from pyarrow import fs

from penstock.checkpoint.errors import CheckpointError
from penstock.machine.disk import Disk
from penstock.machine.locations import is_here

FIRST_POSITIONS = "first-positions"
_HEAD = b"penstock-first-positions-1 "

First = tuple[str, bytes]
"""The words for what a source reads, and the position at which it begins."""


class FirstPositions:
    """Those of one location."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root
        self._path = f"{root}/{FIRST_POSITIONS}"

    def read(self) -> dict[str, First]:
        """The positions that are written, by uid; raises OSError, and CheckpointError where the file is damaged."""
        try:
            with self._fs.open_input_stream(self._path) as stream:
                data = bytes(stream.read())
        except FileNotFoundError:
            return {}
        head, body = data[: len(_HEAD) + 8], data[len(_HEAD) + 8 :]
        if head != _head(body):
            raise CheckpointError(
                f"{self._path} is damaged, so nobody knows where the query began: bring it back, or give another"
                " checkpointLocation"
            )
        return {uid: (what, position) for uid, (what, position) in msgpack.unpackb(body).items()}

    def write(self, positions: Mapping[str, First]) -> None:
        """Write them in the place of those that are there, to stay; raises OSError."""
        body: bytes = msgpack.packb(dict(positions))
        moves, disk = is_here(self._fs), Disk(self._fs)
        path = f"{self._path}.new" if moves else self._path
        with self._fs.open_output_stream(path) as stream:
            stream.write(_head(body) + body)
        disk.sync_file(path)
        if moves:
            self._fs.move(path, self._path)
        disk.sync_folder(self._root)


def _head(body: bytes) -> bytes:
    return _HEAD + xxhash.xxh3_64_digest(body)
