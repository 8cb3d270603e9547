# SPDX-License-Identifier: Apache-2.0
"""The note that says which checkpoint of a location is the newest. It is read by its name, not found in a list.

A folder may be listed in part: a mount that is just coming back, a cache of names that is behind. A start that sees
an older checkpoint only would go on from it, and publish again the rows that came after it. So each commit leaves the
newest checkpoint's name in one file, before any sink hears of the commit.

The file is whole or absent on a file system: it is written beside its place and moved. One that is damaged counts as
absent, as in a location of an earlier version. An owner that was replaced may write an older name. Then the note
protects less until the next commit, and one whose checkpoint is gone says nothing where a later owner's is there.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import xxhash
from pyarrow import fs

from penstock.checkpoint.stamps import Stamp
from penstock.machine.disk import Disk
from penstock.machine.locations import is_here

NOTE = "newest"
_HEAD = "penstock-newest-1"


class NewestNote:
    """That of one location."""

    def __init__(self, filesystem: fs.FileSystem, root: str, disk: Disk) -> None:
        self._fs = filesystem
        self._disk = disk
        self._root = root
        self._path = f"{root}/{NOTE}"
        self._last: Stamp | None = None
        self._moves = is_here(filesystem)

    def prepare(self, stamp: Stamp) -> None:
        """Write the note beside its place, ahead of the checkpoint: a disk that is full fails that, and no more."""
        if self._moves:
            self._put(self._aside(stamp), stamp)
            self._disk.sync_file(self._aside(stamp))

    def withdraw(self, stamp: Stamp) -> None:
        """The checkpoint does not exist: what was prepared goes, as far as that is possible."""
        with suppress(OSError):
            self._fs.delete_file(self._aside(stamp))

    def write(self, stamp: Stamp) -> None:
        """Say that this checkpoint is the newest; raises OSError. Its name counts when its folder is synced."""
        if self._last == stamp:
            return
        if not self._moves:
            self._put(self._path, stamp)
        else:
            try:
                self._fs.move(self._aside(stamp), self._path)
            except FileNotFoundError:  # the mount was another one meanwhile
                self.prepare(stamp)
                self._fs.move(self._aside(stamp), self._path)
        self._last = stamp

    def _aside(self, stamp: Stamp) -> str:
        return f"{self._path}-{stamp.owner}.new"

    def _put(self, path: str, stamp: Stamp) -> None:
        with self._fs.open_output_stream(path) as stream:
            stream.write(_encode(stamp))

    def read(self) -> Stamp | None:
        """The newest checkpoint, or None where no whole note says it; raises OSError."""
        try:
            with self._fs.open_input_stream(self._path) as stream:
                data = stream.read()
        except FileNotFoundError:
            self._last = None
            return None
        stamp = Stamp.of(data.decode(errors="replace").split(" ")[1]) if data.count(b" ") == 2 else None
        self._last = stamp if stamp is not None and _encode(stamp) == data else None
        return self._last

    def missing(self, complete: Collection[Stamp]) -> Stamp | None:
        """The checkpoint that was read last, where these lack it and none is a later owner's."""
        noted = self._last
        if noted is None or noted in complete or any(stamp.owner > noted.owner for stamp in complete):
            return None
        return noted

    def removing(self, stamp: Stamp) -> None:
        """A checkpoint is about to be removed: nothing may say that it is the newest; raises OSError."""
        if self._last == stamp:
            with suppress(FileNotFoundError):
                self._fs.delete_file(self._path)
            self._disk.sync_folder(self._root)
            self._last = None


def _encode(stamp: Stamp) -> bytes:
    text = f"{_HEAD} {stamp}"
    return f"{text} {xxhash.xxh3_64_hexdigest(text.encode())}\n".encode()
