# SPDX-License-Identifier: Apache-2.0
"""Budgets of users at a host service: no user takes what is there for others, and what comes in part is bounded."""

from __future__ import annotations

import pytest

from penstock.connection.budgets import CONNECTION_BYTES, MOST_QUESTIONS, UserBudgets, UserShare
from penstock.connection.frames import beginning, frame
from penstock.connection.handshake import greeting
from penstock.errors import ProtocolError
from penstock.external.question_reader import QUESTION_BYTES, STRANGER_BYTES, QuestionReader

MANY = 1 << 30


def filled(budgets: UserBudgets, user: int) -> int:
    """The connections that a user gets who takes all that he can have."""
    count = 0
    while budgets.enter(user) is not None:
        count += 1
    return count


def test_there_is_always_a_connection_for_another_user() -> None:
    """One user has half of the descriptors, the next ones halves of what is left; what ends is free again."""
    budgets = UserBudgets(MANY, 1024 + 64)
    taken = [filled(budgets, user) for user in range(5)]
    assert taken == [512, 256, 128, 64, 32]
    assert budgets.of_one == 512
    budgets.leave(0)
    assert budgets.enter(5) is not None
    for _ in range(511):
        budgets.leave(0)
    assert 0 not in budgets


def test_connections_are_within_the_memory_of_their_user() -> None:
    """With few bytes and many descriptors the bytes are the limit."""
    assert filled(UserBudgets(100 * CONNECTION_BYTES, MANY), 1) == 100


def test_who_is_over_is_told_when_he_is_not() -> None:
    """Questions under way and answers that nobody has read: those who wait are told once."""
    for over in ({"questions": MOST_QUESTIONS}, {"unread": 101}):
        share, told = UserShare(100, **over), []
        assert share.is_over
        share.wait(lambda told=told: told.append(1))  # type: ignore[misc]
        share.less(**over)
        share.less(**dict.fromkeys(over, 0))
        assert told == [1]


def read(reader: QuestionReader, data: bytes) -> list[int]:
    """Have a reader read this; the sizes of the questions that came whole."""
    found = []
    while data:
        target = reader.next_target()
        count = min(len(target), len(data))
        target[:count] = data[:count]
        reader.received(count)
        data = data[count:]
        while (message := reader.next_message()) is not None:
            found.append(len(message[1]))
    return found


def test_a_question_has_a_limit_and_a_strangers_has_a_lower_one() -> None:
    """It is told from its first bytes, before memory is there for it."""
    reader = QuestionReader(UserShare(MANY), "a task", greets=True)
    assert read(reader, greeting() + frame(1, bytes(STRANGER_BYTES - 100))) == [STRANGER_BYTES - 100]
    with pytest.raises(ProtocolError, match="65,536 is the limit"):
        read(reader, beginning(1, b"", STRANGER_BYTES))
    reader = QuestionReader(UserShare(MANY), "a task", greets=False)
    assert read(reader, frame(1, bytes(QUESTION_BYTES - 100))) == [QUESTION_BYTES - 100]
    with pytest.raises(ProtocolError, match="262,144 is the limit"):
        read(reader, beginning(1, b"", QUESTION_BYTES))


def test_parts_of_questions_count_together_for_their_user() -> None:
    """Until they are begun, as they may wait in line, or their connection has ended; small ones never do."""
    share = UserShare(200_000)
    readers = [QuestionReader(share, "a task", greets=False) for _ in range(3)]
    whole = frame(1, bytes(99_000))
    for reader in readers[:2]:
        assert read(reader, whole[:5000]) == []
        assert reader.since
    with pytest.raises(ProtocolError, match="come in part"):
        read(readers[2], whole[:5000])
    assert read(readers[0], whole[5000:]) == [99_000]
    assert share.half == len(whole)
    assert not readers[0].since
    readers[1].close()
    assert share.half == 0
    waiting = QuestionReader(share, "a task", greets=False)
    assert read(waiting, whole[:-1]) == []
    waiting.next_target()[0] = whole[-1]
    waiting.received(1)
    assert waiting.next_message() is not None
    assert share.half == len(whole)
    assert waiting.next_message() is None
    assert share.half == 0
    assert read(readers[0], frame(1, b"small")[:10]) == []
    assert share.half == 0
