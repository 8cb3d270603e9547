# SPDX-License-Identifier: Apache-2.0
"""A task that attaches while its environment dies: it goes to the next one, which is on the way."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from environment_thread import EnvironmentThread, environment
from penstock.attachment import attachment
from penstock.attachment.launch import EnvironmentLaunch
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.errors import AuthenticationError, EnvironmentLostError, PenstockError

CONF = {"spark.penstock.environment.leaseTimeout": "200ms"}
STEPS = {"before a word": 0, "after its nonce": 1, "before its welcome": 2}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[EnvironmentThread]:
    """The environment that is there in the end."""
    with environment(tmp_path) as found:
        yield found


def dying(secret: bytes, messages: int) -> socket.socket:
    """A connection to an environment that dies after so many of its messages."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def live() -> None:
        hands = Handshake(Role.SERVER, Service.TASKS, Credentials("env-1", secret), "the test")
        with theirs, contextlib.suppress(OSError, PenstockError):
            for _ in range(messages):
                hands.feed(theirs.recv(hands.missing, socket.MSG_WAITALL))
                theirs.sendall(hands.outgoing())

    threading.Thread(target=live, name="dying").start()
    return ours


def attach(here: EnvironmentThread, found: Iterator[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attach a task that finds these first, and then the environment."""

    def connect(_: EnvironmentLaunch) -> socket.socket:
        return next(found, None) or here.connect()

    monkeypatch.setattr(attachment, "connect_or_start", connect)
    attachment.attach(EnvironmentLaunch("app", here.secret, "", CONF)).close()


@pytest.mark.parametrize("step", STEPS)
def test_environment_that_dies_while_a_task_attaches(
    here: EnvironmentThread, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """After any of its words the task attaches to the next one, and its Spark job knows of nothing."""
    attach(here, (dying(here.secret, STEPS[step]) for _ in range(2)), monkeypatch)


@pytest.mark.parametrize("step", STEPS)
def test_environments_that_go_on_dying(here: EnvironmentThread, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The task fails soon, and says why: Spark may try it on another host."""
    without_end = (dying(here.secret, STEPS[step]) for _ in itertools.count())
    with pytest.raises((EnvironmentLostError, AuthenticationError), match=r"closed the connection|does not answer"):
        attach(here, without_end, monkeypatch)


def test_environment_that_is_silent_is_waited_for_once(
    here: EnvironmentThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and has its time: a second wait would not help."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    monkeypatch.setattr(attachment, "LOOK_SECONDS", 0.0)
    with theirs, pytest.raises(EnvironmentLostError, match="does not answer"):
        attach(here, iter([ours]), monkeypatch)
