# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints count, by what the owners of a location have written down."""

from __future__ import annotations

import pytest

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.lineage import Base, decode, encode, lineage
from penstock.checkpoint.stamps import Owner, Stamp

FIRST, SECOND, THIRD = Owner(1, "aa"), Owner(2, "bb"), Owner(3, "cc")
OLD = Owner(1, "11"), Owner(2, "22")
"""Of a version whose checkpoints had no tokens in their names."""
NOTHING = encode(Base(None))


def taken(owner: Owner, *numbers: int) -> list[Stamp]:
    """Complete checkpoints of an owner."""
    return [Stamp(number, owner) for number in numbers]


def on(owner: Owner, number: int) -> bytes:
    """The base of one who stands on this."""
    return encode(Base(Stamp(number, owner)))


@pytest.mark.parametrize("base", [Base(None), Base(Stamp(7, FIRST)), Base(Stamp(7, Owner(3)))])
def test_a_base_is_read_whole_or_not_at_all(base: Base) -> None:
    """Cut anywhere, or with a byte that has changed, it is none."""
    data = encode(base)
    assert decode(data) == base
    assert not any(decode(data[:end]) for end in range(len(data)))
    assert not any(decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) for at in range(len(data)))
    assert decode(data + data) is None


def test_each_owners_checkpoints_count_up_to_where_the_next_went_on() -> None:
    """Those that the first wrote later, and those of an owner that nobody went on from, do not count."""
    complete = taken(FIRST, 1, 2, 3) + taken(SECOND, 2, 3) + taken(THIRD, 3, 4)
    bases = {FIRST: NOTHING, SECOND: on(FIRST, 1), THIRD: on(FIRST, 2)}
    assert lineage(bases, complete, "here") == sorted(taken(FIRST, 1, 2) + taken(THIRD, 3, 4))
    same_epoch = Owner(2, "ab")
    bases = {FIRST: NOTHING, same_epoch: on(FIRST, 1), SECOND: on(FIRST, 1)}
    assert lineage(bases, [*taken(FIRST, 1), *taken(same_epoch, 2), *taken(SECOND, 2)], "here") == [
        *taken(FIRST, 1),
        *taken(SECOND, 2),
    ]


@pytest.mark.parametrize("harm", [b"", b"penst", NOTHING[:-3], b"\xff\x00"])
def test_a_base_that_was_not_written_whole_is_of_one_who_never_committed(harm: bytes) -> None:
    """A start on a full disk, or one that lost power: the owner before it counts. That began anew before."""
    complete = taken(FIRST, 1, 2)
    assert lineage({FIRST: NOTHING, SECOND: harm}, complete, "here") == complete
    assert lineage({FIRST: NOTHING, SECOND: harm, THIRD: harm}, complete, "here") == complete
    assert lineage({FIRST: harm}, [], "here") == []


@pytest.mark.parametrize("harm", [b"", b"garbage", NOTHING[:-3]])
def test_damage_of_a_base_of_one_who_committed_is_refused(harm: bytes) -> None:
    """Nobody can tell on what its checkpoints stand: the file is named."""
    with pytest.raises(CheckpointError, match=r"here/owners/000002-bb.base is damaged.*start over with another"):
        lineage({FIRST: NOTHING, SECOND: harm}, taken(FIRST, 1) + taken(SECOND, 2), "here")


def test_what_is_there_and_does_not_count_is_refused_where_nothing_else_does() -> None:
    """To begin anew would lose it. So it is where owners name checkpoints and none is there."""
    with pytest.raises(CheckpointError, match=r"holds the complete checkpoint chk-.*1-000001-aa, and none counts"):
        lineage({FIRST: NOTHING, SECOND: NOTHING}, taken(FIRST, 1), "here")
    with pytest.raises(CheckpointError, match=r"holds no complete checkpoint.*there was one \(chk-0.*5-000001-aa\)"):
        lineage({FIRST: NOTHING, SECOND: on(FIRST, 5)}, [], "here")
    assert lineage({FIRST: NOTHING, SECOND: NOTHING}, [], "here") == []


def test_unknown_owners_are_refused_unless_a_known_one_came_after() -> None:
    """Folders that were copied without owners; what one left whose files have gone with the need for them is none."""
    with pytest.raises(CheckpointError, match=r"here/owners does not say who made chk-0.*copy or move .* as a whole"):
        lineage({}, taken(FIRST, 1), "here")
    with pytest.raises(CheckpointError, match="does not say who made"):
        lineage({FIRST: NOTHING, THIRD: on(FIRST, 1)}, taken(FIRST, 1) + taken(SECOND, 2), "here")
    assert lineage({THIRD: on(SECOND, 9)}, taken(FIRST, 1) + taken(THIRD, 10), "here") == taken(THIRD, 10)


def test_a_location_of_the_version_before_is_read() -> None:
    """Bare names and empty files: one that committed stood on nothing, one that did not never began."""
    first, second = OLD
    old = [Stamp(1, Owner(1)), Stamp(2, Owner(1)), Stamp(2, Owner(2))]
    assert lineage({first: b""}, old[:2], "here") == old[:2]
    assert lineage({first: b"", second: str(old[0]).encode()}, old, "here") == [old[0], old[2]]
    assert lineage({first: b"", second: b""}, old[:2], "here") == old[:2]
    assert lineage({first: b"", THIRD: on(Owner(1), 2)}, [*old[:2], *taken(THIRD, 3)], "here") == [
        *old[:2],
        *taken(THIRD, 3),
    ]
    assert str(old[0]) == "chk-000000000001-000001"
    assert Stamp.of(str(old[0])) == old[0]
