# SPDX-License-Identifier: Apache-2.0
"""The names of the owners of a checkpoint location, and of their checkpoints.

An owner is one driver's claim: its epoch, and a token that no other claim has. Of two owners the one with the higher
epoch came later; two may take one epoch at the same moment, and then the greater token wins. Every file that an owner
or one of its tasks writes has both in its name, so no two owners ever write one file.

Names of an earlier version have no token, and are read: it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

_CHECKPOINT = "chk"


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One driver's claim."""

    epoch: int
    token: str = ""

    def __str__(self) -> str:
        return f"{self.epoch:06d}" + (f"-{self.token}" if self.token else "")

    @classmethod
    def of(cls, name: str) -> Owner | None:
        """The owner that a name says, or None."""
        epoch, dash, token = name.partition("-")
        is_token = token.isalnum() if dash else True
        return cls(int(epoch), token) if epoch.isdecimal() and is_token else None


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """A checkpoint's place in the history of its location: its number, and the owner that took it."""

    number: int
    owner: Owner

    def __str__(self) -> str:
        return f"{_CHECKPOINT}-{self.number:012d}-{self.owner}"

    @classmethod
    def of(cls, name: str) -> Stamp | None:
        """The stamp that a folder's name says, or None."""
        head, _, rest = name.partition("-")
        number, _, owner = rest.partition("-")
        found = Owner.of(owner)
        return cls(int(number), found) if head == _CHECKPOINT and number.isdecimal() and found is not None else None

    @classmethod
    def by(cls, owner: str, number: int) -> Stamp:
        """The stamp of a checkpoint that this owner takes; raises ValueError where that is no owner's name."""
        found = Owner.of(owner)
        if found is None:
            raise ValueError(f"{owner!r} names no owner of a checkpoint location")
        return cls(number, found)
