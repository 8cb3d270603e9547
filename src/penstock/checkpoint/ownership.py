# SPDX-License-Identifier: Apache-2.0
"""Who may commit to a checkpoint location: the owner with the highest epoch, and what each owner went on from.

File systems of object stores have no locks and no exclusive creation that all of them keep, so a location is fenced
by files that only ever come: `owners/<epoch>-<token>`. A new owner takes an epoch above all that it sees and looks
again; of two with one epoch the greater token wins, and the other tries a higher one. Before it commits anything, an
owner writes down which checkpoint it goes on from (`owners/<epoch>-<token>.base`).

An owner that was paused may still write a checkpoint after it lost the location. It changes nothing: its checkpoints
carry its epoch, and whoever comes after knows up to which one of them they count.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import PurePosixPath

from pyarrow import fs

from penstock.checkpoint.disk import Disk
from penstock.checkpoint.errors import CheckpointError, FencedError

_TRIES = 100


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """A checkpoint's place in the history of its location: its number, and the epoch of the owner that took it."""

    number: int
    epoch: int

    def __str__(self) -> str:
        return f"chk-{self.number:012d}-{self.epoch:06d}"

    @classmethod
    def of(cls, name: str) -> Stamp | None:
        """The stamp that a folder's name says, or None."""
        head, _, rest = name.partition("-")
        number, _, epoch = rest.partition("-")
        return cls(int(number), int(epoch)) if head == "chk" and number.isdigit() and epoch.isdigit() else None


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One driver's claim."""

    epoch: int
    token: str

    def __str__(self) -> str:
        return f"{self.epoch:06d}-{self.token}"

    @classmethod
    def of(cls, name: str) -> Owner | None:
        """The owner that a file's name says, or None."""
        epoch, _, token = name.partition("-")
        return cls(int(epoch), token) if epoch.isdigit() and token and "." not in token else None


class Ownership:
    """The claims on one location."""

    def __init__(self, filesystem: fs.FileSystem, location: str, disk: Disk) -> None:
        self._fs = filesystem
        self._disk = disk
        self._folder = f"{location}/owners"
        self._mine: Owner | None = None

    @property
    def epoch(self) -> int:
        """The epoch that this driver took; raises CheckpointError before it has."""
        if self._mine is None:
            raise CheckpointError(f"nobody has claimed {self._folder}")
        return self._mine.epoch

    def claim(self) -> int:
        """Take the location over from whoever has it; returns the epoch."""
        self._fs.create_dir(self._folder)
        for _ in range(_TRIES):
            highest = max(self._owners(), default=Owner(0, ""))
            mine = Owner(highest.epoch + 1, secrets.token_hex(8))
            self._write(str(mine), b"")
            if max(self._owners()) == mine:
                self._mine = mine
                return mine.epoch
        raise CheckpointError(f"{self._folder}: other drivers claim this checkpoint location all the time")

    def go_on_from(self, stamp: Stamp | None) -> None:
        """Write down which checkpoint this owner's first one stands on; None: on nothing."""
        self._write(f"{self._mine}.base", b"" if stamp is None else str(stamp).encode())

    def check(self) -> None:
        """Raise FencedError where another driver has taken over, CheckpointError where the location is away."""
        latest = max(self._owners(), default=None)
        if self._mine is not None and (latest is None or latest < self._mine):
            raise CheckpointError(f"{self._folder} does not hold this driver's claim any more: is the location away?")
        if latest != self._mine:
            raise FencedError(
                f"another driver has taken over the checkpoint location {PurePosixPath(self._folder).parent}"
                f" (epoch {latest.epoch if latest else 'none'}, ours was {self.epoch}): this query stops here"
            )

    def epochs(self) -> set[int]:
        """Those that drivers have taken."""
        return {owner.epoch for owner in self._owners()}

    def lineage(self, stamps: list[Stamp]) -> list[Stamp]:
        """Of these checkpoints the ones that count, oldest first: each owner's, up to where its successor went on."""
        bases = self._bases()
        found: list[Stamp] = []
        limit: Stamp | None = None
        for owner in sorted(bases, reverse=True):
            if limit is not None and owner.epoch > limit.epoch:
                continue  # its successor did not go on from it
            own = [s for s in stamps if s.epoch == owner.epoch and (limit is None or s <= limit)]
            found += own
            limit = bases[owner]
            if limit is None:
                break
        return sorted(found)

    def _bases(self) -> dict[Owner, Stamp | None]:
        """What each owner that may have committed goes on from."""
        found: dict[Owner, Stamp | None] = {}
        for info in self._files():
            name = info.base_name
            owner = Owner.of(name.removesuffix(".base"))
            if owner is not None and name.endswith(".base"):
                with self._fs.open_input_stream(info.path) as stream:
                    text = stream.read().decode(errors="replace")
                base = found[owner] = Stamp.of(text)
                if text != ("" if base is None else str(base)):
                    raise CheckpointError(
                        f"{info.path} is damaged: it names no checkpoint, so nobody can tell which ones count. Bring"
                        " it back, or begin anew with another checkpointLocation"
                    )
        return found

    def _owners(self) -> list[Owner]:
        return [owner for info in self._files() if (owner := Owner.of(info.base_name)) is not None]

    def _files(self) -> list[fs.FileInfo]:
        found = self._fs.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return [info for info in found if info.type == fs.FileType.File]

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._folder}/{name}"
        with self._fs.open_output_stream(path) as stream:
            stream.write(data)
        self._disk.sync_file(path)
        self._disk.sync_folder(self._folder)
