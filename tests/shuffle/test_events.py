# SPDX-License-Identifier: Apache-2.0
"""Events as bytes: every event comes back as it was sent, anything else is the peer's fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.shuffle import EndOfData, EndOfPartition, EpochEnd, Event, TaskEvent
from penstock.shuffle.events import ProducerIs, Reattached, decode_event, encode_event

COUNTS = st.integers(0, (1 << 64) - 1)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(EndOfData, st.booleans()),
    st.builds(EndOfPartition, COUNTS, COUNTS, COUNTS),
    st.builds(EpochEnd, st.binary(max_size=40), COUNTS, COUNTS, COUNTS, COUNTS, st.booleans()),
    st.builds(TaskEvent, st.binary(max_size=40)),
    st.builds(ProducerIs, st.integers(-1, (1 << 63) - 1)),
    st.builds(Reattached, st.binary(max_size=40)),
)


@given(EVENTS)
def test_an_event_comes_back_as_it_was_sent(event: Event) -> None:
    """Kind, sums and payload survive, whatever the payload looks like."""
    assert decode_event(encode_event(event)) == event


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_are_an_event(data: bytes) -> None:
    """No bytes crash the reader: what can be read is written as the same bytes, the rest is a ProtocolError."""
    try:
        event = decode_event(data)
    except ProtocolError:
        return
    assert encode_event(event) == data


@pytest.mark.parametrize("cut", range(1, 25))
def test_sums_that_are_cut_are_refused(cut: int) -> None:
    """An end without all of its sums is no end."""
    for event in (EndOfPartition(1, 2, 3), EpochEnd(b"", 1, 2, 3, 4)):
        with pytest.raises(ProtocolError):
            decode_event(encode_event(event)[:cut])
