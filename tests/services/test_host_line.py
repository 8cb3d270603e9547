# SPDX-License-Identifier: Apache-2.0
"""A task's line to its host's service: a stranger at the path of the socket is told nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from penstock.connection.sockets import unix_listening
from penstock.errors import AuthenticationError, NoStorageError, SettingError
from penstock.external.keys import ApplicationKey
from penstock.services.external.host_line import HostLine, HostSocket


@pytest.mark.parametrize("user", ["", "nobody-of-this-name", str(os.geteuid() + 2)])
def test_a_key_is_told_to_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    """The one that listens is not root, not of the task's user, and not the user that a setting names."""
    heard: list[bytes] = []
    with unix_listening(tmp_path / "s") as listening:
        monkeypatch.setattr("penstock.services.external.host_line.os.geteuid", lambda: 4_000_000)
        monkeypatch.setattr("penstock.services.external.host_line.user_at", lambda _: 4_000_001)

        def hear() -> None:
            with listening.accept()[0] as connected:
                heard.append(connected.recv(1000))

        thread = threading.Thread(target=hear)
        thread.start()
        with pytest.raises((AuthenticationError, SettingError), match=r"spark\.penstock\.external\.user"):
            HostLine(HostSocket(str(tmp_path / "s"), user), ApplicationKey("app", b"k" * 32), 0.0, lambda: None)
        thread.join()
    assert heard == [b""]


def test_a_socket_takes_the_place_of_a_socket_alone(tmp_path: Path) -> None:
    """One that a killed process has left goes; a file stays, as does a link, and the message names it."""
    path = tmp_path / "s"
    for _ in range(2):
        unix_listening(path).close()
    assert path.is_socket()
    path.unlink()
    for make in (lambda: path.write_text("precious"), lambda: path.symlink_to(tmp_path / "elsewhere")):
        make()
        with pytest.raises(SettingError, match="is no socket: nothing was removed"):
            unix_listening(path)
        path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    unix_listening(path).close()


def test_a_service_that_accepts_nothing_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    """Its line is full: the task looks whether it is to stop, and says in the end that no service answers."""
    looks: list[int] = []
    with unix_listening(tmp_path / "s") as listening:
        listening.listen(0)
        waiting = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(100):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(tmp_path / "s"))
        with pytest.raises(NoStorageError, match="no host service answers at"):
            HostLine(str(tmp_path / "s"), ApplicationKey("app", b"k" * 32), 0.1, lambda: looks.append(1), 0.1)
        for each in waiting:
            each.close()
    assert looks
