# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints of a location count, as a pure function of what its files say.

Each owner writes down once what its first checkpoint stands on: a checkpoint of an owner before it, or nothing. That
is its base, a line with a checksum. So the checkpoints that count are the newest owner's, and those that it stands
on: each owner's, up to where the next one went on.

Rules
- A base that was not written whole is that of an owner that never committed: the one before it counts. If there are
  complete checkpoints of such an owner, its base was damaged later: that is refused.
- Complete checkpoints of which none counts are refused, and so are bases that name checkpoints where there is none.
  To begin anew would lose all of them.
- A checkpoint of an owner that is not known counts for nothing. It is refused if no newer checkpoint is there.

An earlier version wrote the bare name of a checkpoint, and no byte for nothing. Such a name is read. Such a nothing
counts where its owner committed as that version did, without tokens in the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.stamps import Owner, Stamp

_HEAD = "penstock-base-1"
_NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Base:
    """The base of an owner's first checkpoint; None: it has none."""

    stamp: Stamp | None


def encode(base: Base) -> bytes:
    """The bytes of the file."""
    text = f"{_HEAD} {_NOTHING if base.stamp is None else base.stamp}"
    return f"{text} {xxhash.xxh3_64_hexdigest(text.encode())}\n".encode()


def decode(data: bytes) -> Base | None:
    """Inverse of `encode`; None where the file was not written whole."""
    text = data.decode(errors="replace")
    bare = Stamp.of(text)
    if bare is not None and not bare.owner.token and str(bare) == text:
        return Base(bare)
    _, _, name = text.partition(" ")
    name = name.partition(" ")[0]
    base = Base(None if name == _NOTHING else Stamp.of(name))
    return base if (base.stamp is not None or name == _NOTHING) and encode(base) == data else None


def lineage(bases: Mapping[Owner, bytes], complete: Sequence[Stamp], where: str) -> list[Stamp]:
    """Of these complete checkpoints the ones that count, oldest first.

    `bases` has every owner that is known, and the bytes of its base, none where it has no such file. Raises
    CheckpointError where that can't be told; `where` names the location.
    """
    _refuse_unknown(bases, complete, where)
    found: list[Stamp] = []
    limit: Stamp | None = None
    stands: Base | None = None
    for owner in sorted(bases, reverse=True):
        if stands is not None and (limit is None or not _took(owner, limit)):
            continue  # its successor did not go on from it
        own = [stamp for stamp in complete if _took(owner, stamp)]
        base = _base(owner, bases[owner], own, where)
        if base is None:
            continue
        found += [stamp for stamp in own if limit is None or stamp.number <= limit.number]
        limit, stands = base.stamp, base
    _refuse_nothing(bases, complete, found, where)
    return sorted(found)


def _took(owner: Owner, stamp: Stamp) -> bool:
    """Tell whether this owner took a checkpoint: in names without a token the epoch alone says whose it is."""
    return stamp.owner.epoch == owner.epoch and stamp.owner.token in ("", owner.token)


def _base(owner: Owner, data: bytes, own: Sequence[Stamp], where: str) -> Base | None:
    base = decode(data)
    if base is not None or not own:
        return base
    if not data and not any(stamp.owner.token for stamp in own):
        return Base(None)
    raise CheckpointError(
        f"{where}/owners/{owner}.base is damaged, or gone: it does not say on which checkpoint {own[0]} builds, so"
        " nobody can tell which ones count. Bring it back, or start over with another checkpointLocation"
    )


def _refuse_unknown(bases: Mapping[Owner, bytes], complete: Sequence[Stamp], where: str) -> None:
    """Checkpoints of owners that are not known, where no known owner has taken a newer one."""
    known = [stamp for stamp in complete if any(_took(owner, stamp) for owner in bases)]
    newest = max((stamp.owner for stamp in known), default=Owner(0))
    unknown = [stamp for stamp in complete if stamp not in known and stamp.owner > newest]
    if unknown:
        raise CheckpointError(
            f"{where}/owners does not say who made {max(unknown)}: copy or move a checkpoint location as a whole."
            " Bring the folder owners back, or start over with another checkpointLocation"
        )


def _refuse_nothing(
    bases: Mapping[Owner, bytes], complete: Sequence[Stamp], found: Sequence[Stamp], where: str
) -> None:
    """Nothing counts, although there are checkpoints, or were."""
    if found:
        return
    if complete:
        raise CheckpointError(
            f"{where} holds the complete checkpoint {max(complete)}, and none counts: the owner who came last began"
            " with nothing. Start over with another checkpointLocation, or remove this one as a whole"
        )
    named = [base.stamp for data in bases.values() if (base := decode(data)) is not None and base.stamp is not None]
    if named:
        raise CheckpointError(
            f"{where} holds no complete checkpoint, and owners says that there was one ({max(named)}): is the"
            " location away? Bring the checkpoints back, or start over with another checkpointLocation"
        )
