# SPDX-License-Identifier: Apache-2.0
"""Shares of a blocking result: everything is read once, sizes decide, huge subpartitions are cut where allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.shares import Cut, Share, choose_shares, even_shares

MB = 1 << 20
SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 300 * MB)), min_size=1, max_size=60)


def read_by(shares: tuple[Share, ...], side: int, producers: int) -> list[tuple[int, int]]:
    """Every (subpartition, producer) that some share reads of this side, with repetitions."""
    return sorted(
        (subpartition, producer)
        for share in shares
        for subpartition in range(share.first, share.first + share.count)
        for producer in range(producers)
        if share.reads(side, producer)
    )


@given(sizes=SIZES, slots=st.integers(1, 16), producers=st.integers(1, 6), may_cut=st.booleans())
def test_everything_is_read_once(sizes: list[int], slots: int, producers: int, may_cut: bool) -> None:
    """Of the cut side each producer's subpartition has one reader; of another side it goes to every part."""
    cut = Cut(1, sizes, producers) if may_cut else None
    shares = choose_shares(sizes, slots, 64 * MB, cut)
    once = sorted((index, producer) for index in range(len(sizes)) for producer in range(producers))
    assert read_by(shares, 1, producers) == once
    assert set(read_by(shares, 0, producers)) == set(once)
    firsts = [share.first for share in shares]
    assert firsts == sorted(firsts)


@given(sizes=SIZES, slots=st.integers(1, 16))
def test_no_share_is_far_above_the_target(sizes: list[int], slots: int) -> None:
    """Without cutting, a share of several subpartitions holds at most the target and one more subpartition."""
    for share in choose_shares(sizes, slots, 64 * MB):
        held = sum(sizes[share.first : share.first + share.count])
        largest = max(sizes[share.first : share.first + share.count])
        assert share.count == 1 or held <= 64 * MB + largest


def test_small_results_get_few_consumers() -> None:
    """Nothing at all is one consumer's; a few megabytes use the slots; much data is cut by the target."""
    assert choose_shares([0] * 64, 8, 64 * MB) == (Share(0, 64),)
    assert len(choose_shares([MB // 32] * 64, 8, 64 * MB)) == 2
    assert len(choose_shares([MB] * 64, 8, 64 * MB)) == 8
    assert len(choose_shares([32 * MB] * 64, 8, 64 * MB)) == 32


def test_a_huge_subpartition_is_read_by_several_consumers_where_that_is_allowed() -> None:
    """Each part has its own producers; where there is one producer, or no leave, it stays whole."""
    sizes = [MB] * 7 + [200 * MB] + [MB] * 8
    shares = choose_shares(sizes, 4, 64 * MB, Cut(0, sizes, 8))
    parts = [share for share in shares if share.parts > 1]
    assert [share.first for share in parts] == [7] * len(parts)
    assert len(parts) == 4
    assert all(share.parts == 1 for share in choose_shares(sizes, 4, 64 * MB, Cut(0, sizes, 1)))
    assert all(share.parts == 1 for share in choose_shares(sizes, 4, 64 * MB))


def test_even_shares() -> None:
    """Ranges differ by one at most and never outnumber the subpartitions."""
    assert even_shares(10, 4) == (Share(0, 2), Share(2, 3), Share(5, 2), Share(7, 3))
    assert even_shares(2, 8) == (Share(0, 1), Share(1, 1))
