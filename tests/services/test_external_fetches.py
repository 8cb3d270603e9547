# SPDX-License-Identifier: Apache-2.0
"""A gate's wishes at a host service: the window, answers in any order, and a connection that breaks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.external.requests import FindRange
from penstock.services.external.fetches import WINDOW, ServiceFetches, WantedPiece
from penstock.services.external.session import ServiceChunk, ServiceReply
from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.requests import Request

QUESTION = FindRange(PartitionId(DatasetId("job", 0), 0, 0), 0, 1)


class Calls:
    """The calls of a session: their numbers, and the lengths of what was fetched."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.number = 0

    def ask(self, request: Request[Any]) -> int:
        """A question."""
        assert request is QUESTION
        return self.fetch(0, 0, 0)

    def fetch(self, partition: int, offset: int, length: int) -> int:
        """Bytes."""
        self.number += 1
        self.open[self.number] = length
        return self.number


def wanted(lengths: list[int]) -> list[WantedPiece]:
    """Pieces of these lengths; 0 is a question."""
    return [WantedPiece(0, None, 1, at, n) if n else WantedPiece(0, QUESTION) for at, n in enumerate(lengths)]


@given(st.lists(st.sampled_from([0, 1000, 1 << 20, 4 << 20]), max_size=30), st.data())
def test_all_that_is_wanted_comes_once_whatever_breaks(lengths: list[int], data: st.DataObject) -> None:
    """The window holds, and each piece is given once, over connections that end at any moment."""
    fetches, pieces, calls, came = ServiceFetches(), wanted(lengths), Calls(), []
    fetches.want(pieces)
    fetches.begin(calls)
    while fetches:
        assert sum(calls.open.values()) <= WINDOW
        if data.draw(st.integers(0, 5)) == 0:
            assert not fetches.end(blames=True)
            calls = Calls()
            fetches.begin(calls)
        number = data.draw(st.sampled_from(sorted(calls.open)))
        length = calls.open.pop(number)
        message = ServiceChunk(number, pa.py_buffer(bytes(length))) if length else ServiceReply(number, {})
        came += [piece.wanted for piece in fetches.took(message)]
    assert sorted(map(id, came)) == sorted(map(id, pieces))


def test_an_answer_that_nobody_waits_for_is_refused() -> None:
    """A number that was not given, or one that has had its answer, is no protocol."""
    fetches, calls = ServiceFetches(), Calls()
    fetches.begin(calls)
    fetches.want(wanted([0]))
    fetches.took(ServiceReply(1, {}))
    for number in (1, 7):
        with pytest.raises(ProtocolError):
            fetches.took(ServiceReply(number, {}))
