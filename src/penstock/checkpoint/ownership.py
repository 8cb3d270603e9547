# SPDX-License-Identifier: Apache-2.0
"""The owner of a checkpoint location, who alone may commit: the one that came last. These are the files that say so.

    owners/<epoch>-<token>            a claim; that it is there is all it says
    owners/<epoch>-<token>.base       what the owner's first checkpoint stands on (`lineage`)
    owners/<epoch>-<token>.base.new   the same, before the claim
    owners/<epoch>-<token>.running    the sign that its query runs (`running`); it fences no driver

File systems of object stores have no locks and no exclusive creation that all of them keep, so a location is fenced
by files that only ever come. A new owner takes an epoch above all that it sees and looks again; of two with one epoch
the greater token wins, and the other tries a higher one. The base is whole or absent: on a file system it gets its
name by a move when it is on the disk, in an object store it is one put. It is written beside its place ahead of the
claim, because a disk that is full must not end the query that runs.

An owner that was paused may still write a checkpoint after it lost the location. It changes nothing: its checkpoints
carry its name, and the next owner has written down which of them count.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import PurePosixPath

from pyarrow import fs

from penstock.checkpoint.errors import AwayError, CheckpointError, FencedError
from penstock.checkpoint.lineage import Base, encode
from penstock.checkpoint.running import RUNNING
from penstock.checkpoint.stamps import Owner, Stamp
from penstock.machine.disk import Disk
from penstock.machine.locations import is_here

_TRIES = 100
_BASE = ".base"
_ASIDE = ".base.new"


class Ownership:
    """The claims on one location."""

    def __init__(self, filesystem: fs.FileSystem, location: str, disk: Disk) -> None:
        self._fs = filesystem
        self._disk = disk
        self._moves = is_here(filesystem)
        """True if a file can be written beside its place and get its name in one step."""
        self._location = location
        self._folder = f"{location}/owners"
        self._mine: Owner | None = None

    @property
    def mine(self) -> Owner:
        """This driver's claim; raises CheckpointError before it has one."""
        if self._mine is None:
            raise CheckpointError(f"nobody has claimed {self._folder}")
        return self._mine

    def claim(self, stamp: Stamp | None) -> Owner:
        """Take the location over from its owner; `stamp` is what the new owner will most likely stand on.

        Raises OSError where the location can't be written, and its owner keeps it then.
        """
        self._fs.create_dir(self._folder)
        # Without it epochs begin anew after a loss of power, and with the location's own name all goes.
        self._disk.sync_folder(self._location)
        with suppress(PermissionError):  # one may not look into the folder above
            self._disk.sync_folder(str(PurePosixPath(self._location).parent))
        for _ in range(_TRIES):
            highest = max(self._owners(), default=Owner(0))
            mine = Owner(highest.epoch + 1, secrets.token_hex(8))
            try:
                if self._moves:
                    self._write(f"{mine}{_ASIDE}", encode(Base(stamp)))
                self._write(str(mine), b"")
                latest = max(self._owners(), default=Owner(0))
            except BaseException:
                self._remove(mine)
                raise
            if latest == mine:
                self._mine = mine
                return mine
            self._remove(mine)
            if latest < mine:
                raise CheckpointError(f"{self._folder} does not show what was written there: is the location away?")
        raise CheckpointError(f"{self._folder}: other drivers claim this checkpoint location all the time")

    def go_on_from(self, stamp: Stamp | None) -> None:
        """Write down what this owner's first checkpoint stands on, None: on nothing; raises OSError, FencedError."""
        data, path = encode(Base(stamp)), f"{self._folder}/{self.mine}"
        if not self._moves:
            self._write(f"{self.mine}{_BASE}", data)
            return
        try:
            if self._read(path + _ASIDE) != data:
                self._write(f"{self.mine}{_ASIDE}", data)
            self._fs.move(path + _ASIDE, path + _BASE)
        except FileNotFoundError:
            self.check()  # who has taken over removes what is another's
            raise
        self._disk.sync_folder(self._folder)

    def withdraw(self) -> None:
        """Give the claim back: nothing was done under it, so the former owner has the location again."""
        mine, self._mine = self._mine, None
        if mine is not None:
            self._remove(mine)

    def check(self) -> None:
        """Raise FencedError where another driver has taken over, OSError (AwayError) where the location is away."""
        latest = max(self._owners(), default=Owner(0))
        if latest < self.mine:
            raise AwayError(f"{self._folder} does not hold this driver's claim any more: is the location away?")
        if latest != self.mine:
            raise FencedError(
                f"another driver has taken over the checkpoint location {PurePosixPath(self._folder).parent}"
                f" (epoch {latest.epoch}, ours was {self.mine.epoch}): this query stops here"
            )

    def bases(self) -> dict[Owner, bytes]:
        """Every owner that is known, and the bytes of its base, none where it has written none."""
        names = self._names()
        found = {owner: b"" for name in names if (owner := Owner.of(name.removesuffix(_BASE))) is not None}
        for owner in found:
            if f"{owner}{_BASE}" in names:
                found[owner] = self._read(f"{self._folder}/{owner}{_BASE}")
        return found

    def forget(self, needed: Collection[Owner]) -> None:
        """Remove the files of owners before this one but these: no checkpoint is left that they could tell of."""
        names = self._names()
        # The folders of their checkpoints are gone: they must not come back without the words that tell of them.
        self._disk.sync_folder(self._location)
        for name in sorted(names, reverse=True):  # a base ahead of its claim
            owner = Owner.of(name.removesuffix(_ASIDE).removesuffix(_BASE).removesuffix(RUNNING))
            if owner is not None and owner < self.mine and owner not in needed:
                with suppress(FileNotFoundError):
                    self._fs.delete_file(f"{self._folder}/{name}")

    def _owners(self) -> list[Owner]:
        return [owner for name in self._names() if (owner := Owner.of(name)) is not None]

    def _names(self) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.File]

    def _read(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.read())

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._folder}/{name}"
        with self._fs.open_output_stream(path) as stream:
            stream.write(data)
        self._disk.sync_file(path)
        self._disk.sync_folder(self._folder)

    def _remove(self, owner: Owner) -> None:
        """The files of a claim of this driver under which nothing was done, as far as that is possible."""
        for end in ("", _BASE, _ASIDE):
            with suppress(OSError):
                self._fs.delete_file(f"{self._folder}/{owner}{end}")
