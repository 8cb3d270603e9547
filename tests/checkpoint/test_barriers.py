# SPDX-License-Identifier: Apache-2.0
"""Barriers and markers as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.barriers import Alignment, CancelCheckpointMarker, CheckpointBarrier, decode, encode
from penstock.errors import ProtocolError

NUMBERS = st.integers(min_value=1, max_value=2**64 - 1)
MICROSECONDS = st.integers(min_value=0, max_value=2**50).map(lambda n: n / 1_000_000)


TIMEOUTS = st.none() | st.integers(0, 10**9).map(lambda n: n / 1_000)


@given(NUMBERS, MICROSECONDS, st.sampled_from(Alignment), TIMEOUTS)
def test_a_barrier_comes_back_as_it_was(
    number: int, when: float, alignment: Alignment, timeout: float | None
) -> None:
    """Every field of a barrier survives the way to bytes and back, to the microsecond."""
    back = decode(encode(CheckpointBarrier(number, when, alignment, timeout)))
    assert isinstance(back, CheckpointBarrier)
    assert (back.checkpoint, back.alignment) == (number, alignment)
    assert back.triggered == pytest.approx(when, abs=1e-6)
    assert back.timeout is None if timeout is None else back.timeout == pytest.approx(timeout, abs=1e-6)


@given(NUMBERS)
def test_a_marker_comes_back_as_it_was(number: int) -> None:
    """A marker carries the number of its checkpoint."""
    assert decode(encode(CancelCheckpointMarker(number))) == CancelCheckpointMarker(number)


@given(st.binary(max_size=40))
def test_other_bytes_are_the_peers_fault(payload: bytes) -> None:
    """Bytes that are no event are a ProtocolError; those that are one encode to the same bytes again."""
    try:
        event = decode(payload)
    except ProtocolError:
        return
    assert decode(encode(event)) == event


def test_which_barriers_stop_their_channel() -> None:
    """Aligned barriers, forced ones too, stop the sender; the others never do."""
    stops = [kind.name for kind in Alignment if CheckpointBarrier(1, 0.0, kind).blocks_sender]
    assert stops == ["ALIGNED", "FORCED_ALIGNED"]
