# SPDX-License-Identifier: Apache-2.0
"""Completeness: order does not matter, everything else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IncompleteDataError
from penstock.record.completeness import CompletenessCounter

U64 = st.integers(0, (1 << 64) - 1)
MESSAGES = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 50), U64), max_size=20)


def _counted(messages: list[tuple[int, int, int]]) -> CompletenessCounter:
    counter = CompletenessCounter()
    for message in messages:
        counter.add(*message)
    return counter


@given(MESSAGES, st.randoms())
def test_order_does_not_matter(messages: list[tuple[int, int, int]], rng) -> None:
    """Any order of the same messages verifies, and the checksum stays within 64 bits."""
    expected = _counted(messages).end_of_partition()
    shuffled = list(messages)
    rng.shuffle(shuffled)
    _counted(shuffled).verify(expected, "here")
    assert expected.checksum == sum(c for *_, c in messages) % (1 << 64)


@given(MESSAGES.filter(len), st.data())
def test_loss_and_doubling_show(messages: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """A message lost or received twice fails, unless it is nothing but zeros."""
    row = data.draw(st.sampled_from(messages))
    expected = _counted(messages).end_of_partition()
    rest = list(messages)
    rest.remove(row)
    for wrong in (rest, [*messages, row]):
        if any(row):
            with pytest.raises(IncompleteDataError):
                _counted(wrong).verify(expected, "here")


def test_the_error_names_both_figures_and_the_place() -> None:
    """Someone reading the message learns what was expected, what came, and from where."""
    counter = _counted([(3, 100, 0xAB)])
    with pytest.raises(
        IncompleteDataError, match=r"e1\.0#7 on host b: received 3 rows, 100 bytes, .*ab.* 4 rows, 130 "
    ):
        counter.verify(_counted([(3, 100, 0xAB), (1, 30, 1)]).end_of_partition(), "e1.0#7 on host b")


def test_merged_counts_both() -> None:
    """The rows sent to one and those broadcast to all add up in a new counter."""
    one, shared = _counted([(1, 2, (1 << 64) - 1)]), _counted([(10, 20, 3)])
    assert one.merged(shared).end_of_partition() == _counted([(11, 22, 2)]).end_of_partition()
    assert (one.rows, shared.rows) == (1, 10)
    assert "1 rows, 2 bytes" in repr(one)
