# SPDX-License-Identifier: Apache-2.0
"""Questions with lists: one rule bounds what is in them, for all that there are, before anything is made of it.

The questions are the messages that there are (`malicious`), and their types say which of them have lists.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

import malicious
from penstock.connection.budgets import UserShare
from penstock.connection.frames import HEADER
from penstock.connection.turns import Turns
from penstock.errors import QuotaError
from penstock.link.control import carried_error
from penstock.link.frames import REQUEST, LinkFrameType, call_frame, read_reply
from penstock.link.wire import Done, to_wire
from penstock.remote import messages as ask
from penstock.remote.wire import QUESTION_BYTES, Guest, PeerLogic
from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.requests import Request

PARTITION = PartitionId(DatasetId("job", 0), 0, 0)
QUESTIONS = {
    name: kind
    for name, kind in malicious.requests_of("remote").items()
    if isinstance(kind, type) and kind not in (ask.Enroll, ask.Beat)
}
"""Those of tasks and drivers, whom anybody may be that has a key."""


def lists_of(kind: type[Any]) -> list[str]:
    """The fields that are lists or dictionaries."""
    return [name for name, hint in typing.get_type_hints(kind).items() if typing.get_origin(hint) in (tuple, dict)]


def told(body: bytes, *kinds: type[Request[Any]]) -> tuple[list[Any], QuotaError | None]:
    """What a service with these questions hears of one from a guest, and its refusal."""
    heard: list[Any] = []

    def serve(asked: Any) -> Done:
        heard.append(asked)
        return Done()

    guest = Guest(UserShare(1 << 30), Turns(lambda _: None))
    logic = PeerLogic(dict.fromkeys(kinds, serve), {}, lambda _: None, guest=guest)
    logic.receive((LinkFrameType.CALL, memoryview(body)))
    reply = logic.next_frame()
    assert reply is not None
    number, answer = read_reply(memoryview(b"".join(reply.parts))[HEADER.size :])
    assert number == 7
    if not answer:
        return heard, None
    error = carried_error(answer)
    assert isinstance(error, QuotaError)
    return heard, error


def body(asked: Request[Any]) -> bytes:
    """A question, as it comes."""
    return call_frame(7, type(asked).METHOD, to_wire(asked))[HEADER.size :]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_of_too_many_values_is_refused_unread(name: str) -> None:
    """The largest with a list is, by an error that says what to do, as many as we ask ourselves are not."""
    kind = QUESTIONS[name]
    lists = lists_of(kind)
    largest = malicious.filled(kind, QUESTION_BYTES - 1000, PARTITION)
    heard, error = told(body(largest), kind)
    if lists:
        assert not heard
        assert "ask about fewer at once" in str(error)
    else:
        assert heard == [largest]
    of_list = {each: getattr(largest, each) for each in lists}
    few = {
        each: dict.fromkeys(sorted(values)[:100], b"") if isinstance(values, dict) else values[:1] * ask.MOST_ASKED
        for each, values in of_list.items()
    }
    paged = dataclasses.replace(malicious.filled(kind, 10, PARTITION), **few)
    assert told(body(paged), kind) == ([paged], None)


def test_values_that_take_more_than_their_bytes_are_not_made() -> None:
    """Lists and dictionaries within each other, each with nothing, and one list of small texts."""
    empty = 500_000
    head = b"\x82\xa6method\xb0CloseApplication\xa7message\x81\xa1x\xdd" + empty.to_bytes(4, "big")
    for each in (b"\x80", b"\x90", b"\x91\x90", b"\xa2ab"):
        heard, error = told(REQUEST.pack(7) + head + each * empty, ask.CloseApplication)
        assert not heard
        assert error is not None
