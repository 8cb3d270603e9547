# SPDX-License-Identifier: Apache-2.0
"""A task's line to the service of its own host: questions over the Unix socket, and the files it is lent.

Rules: it waits in steps of a twentieth of a second, and looks in between whether its task is to stop. A service that
is not there, as while it is restarted, is waited for; one that goes while a partition is written, or gives no answer
for a minute, takes it along. It says its key to root, to a process of its own user, or to one of a user that a
setting names. Any other process that listens at the path does not get it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock.connection.frames import HEADER, check, read_beginning
from penstock.connection.handshake import check_greeting, greeting
from penstock.errors import AuthenticationError, NoStorageError, SettingError, StorageError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import BeginPartition, BegunPartition, Introduce, Introduced, LendFile
from penstock.link.control import raise_for_error
from penstock.link.frames import call_frame, read_reply
from penstock.link.wire import Done, from_wire, to_wire
from penstock.shuffle.requests import Request

A = TypeVar("A")
_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 0.1
_ANSWER_SECONDS = 60.0
_LAST_SECONDS = 2.0
_LENT = 2
_PEER = struct.Struct("3i")


class HostSocket(NamedTuple):
    """The place of a host's service: the path of its socket, and the user that it may run as beside root."""

    path: str
    user: str = ""


class HostLine:
    """One connection. `check` is called while it waits, and may raise."""

    def __init__(
        self,
        place: str | HostSocket,
        key: ApplicationKey,
        patience: float,
        check: Callable[[], object],
        answer: float = _ANSWER_SECONDS,
    ) -> None:
        self._path, self._user = (place, "") if isinstance(place, str) else place
        self._check = check
        self._patience = patience
        self._calls = 0
        self._seconds = answer
        deadline = time.monotonic() + patience
        self._socket = self._connected(deadline)
        try:
            while not self._has_greeted(deadline):
                self.close()
                self._pause()
                self._socket = self._connected(deadline)
            self.introduced: Introduced = self.ask(Introduce(key.title, key.key))
        except BaseException:
            self.close()
            raise

    def ask(self, request: Request[A]) -> A:
        """Ask; raises what the service raised, and StorageError where it has gone."""
        answer, lent = self._asked(request)
        self._close_all(lent)
        return answer

    def begin(self, request: BeginPartition) -> tuple[BegunPartition, int, int]:
        """Begin a partition: descriptors of its data file and index come with the answer."""
        answer, (data, index) = self._borrowed(request, _LENT)
        return answer, data, index

    def borrow(self, request: LendFile) -> int:
        """Borrow a data file: a descriptor of it, to be read."""
        _, (data,) = self._borrowed(request, 1)
        return data

    def tell(self, request: Request[Done]) -> None:
        """A last word, also of a task that was told to stop."""
        self._check = lambda: None
        self._seconds = _LAST_SECONDS
        self.ask(request)

    @property
    def is_there(self) -> bool:
        """True if the service has not hung up; asked between two questions, when nothing else can come."""
        look = select.poll()
        look.register(self._socket, select.POLLIN)
        return not look.poll(0)

    def close(self) -> None:
        """Hang up; idempotent."""
        self._socket.close()

    def _has_greeted(self, deadline: float) -> bool:
        """Tell whether the service has said its version, before the deadline; VersionError where that is another."""
        try:
            with contextlib.suppress(BrokenPipeError):  # what the service has said before it went is still there
                self._socket.sendall(greeting())
            self._socket.settimeout(_LOOK_SECONDS)
            word = self._received(len(greeting()), [], time.monotonic() + self._seconds)
        except OSError as error:
            if time.monotonic() < deadline:
                return False
            raise NoStorageError(
                f"the host service at {self._path} does not say which version it speaks: it is of another Penstock,"
                f" hangs, or has just ended: {error}"
            ) from error
        check_greeting(word, f"the host service at {self._path}")
        return True

    def _connected(self, deadline: float) -> socket.socket:
        while True:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.settimeout(_LOOK_SECONDS)  # else connect() waits without end where the service accepts nothing
            try:
                connected.connect(self._path)
            except OSError as error:
                connected.close()
                if time.monotonic() >= deadline:
                    raise NoStorageError(
                        f"no host service answers at {self._path} within {self._patience:.0f} s: {error}. Start"
                        f" `penstock service external --dir {Path(self._path).parent}` on this host, or set"
                        " spark.penstock.external.socket to where it is"
                    ) from error
            else:
                try:
                    self._check_peer(connected)
                except BaseException:
                    connected.close()
                    raise
                return connected
            self._pause()

    def _check_peer(self, connected: socket.socket) -> None:
        """Raise AuthenticationError for a peer that may not know the key; the kernel says who it is."""
        found = user_at(connected)
        if found in (0, os.geteuid()) or (self._user and found == _number_of(self._user)):
            return
        raise AuthenticationError(
            f"the process that listens at {self._path} runs as user {found}, and this one as user {os.geteuid()}:"
            " it is not told this application's key. Where it is this host's service, set"
            " spark.penstock.external.user to its user"
        )

    def _pause(self) -> None:
        self._check()
        time.sleep(_PAUSE_SECONDS)

    def _borrowed(self, request: Request[A], count: int) -> tuple[A, list[int]]:
        answer, lent = self._asked(request)
        if len(lent) != count:
            self._close_all(lent)
            raise StorageError(f"the host service at {self._path} has lent {len(lent)} files instead of {count}")
        return answer, lent

    def _asked(self, request: Request[A]) -> tuple[A, list[int]]:
        self._calls += 1
        lent: list[int] = []
        try:
            deadline = time.monotonic() + self._seconds
            self._socket.settimeout(self._seconds)
            self._socket.sendall(call_frame(self._calls, request.METHOD, to_wire(request)))
            self._socket.settimeout(_LOOK_SECONDS)
            head = self._received(HEADER.size, lent, deadline)
            length, _, _, seal = read_beginning(head)
            body = self._received(length - HEADER.size, lent, deadline)
            check(seal, body)
            _, plain = read_reply(memoryview(body))
            return from_wire(request.ANSWER, raise_for_error(plain)), lent
        except OSError as error:
            self._close_all(lent)
            self.close()  # what comes next would mean nothing
            raise StorageError(
                f"the host service at {self._path} has gone while a partition was written: {error}. The partition"
                " must be produced again"
            ) from error
        except BaseException:
            self._close_all(lent)
            raise

    def _received(self, size: int, lent: list[int], deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            self._check()
            try:
                more, found, _, _ = socket.recv_fds(self._socket, size - len(data), _LENT, socket.MSG_CMSG_CLOEXEC)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer within {self._seconds:.0f} s") from None
                continue
            lent += found
            if not more:
                raise ConnectionResetError("it has closed the connection")
            data += more
        return data

    @staticmethod
    def _close_all(lent: list[int]) -> None:
        for descriptor in lent:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def user_at(connected: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel says."""
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(user)


def _number_of(user: str) -> int:
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise SettingError(f"spark.penstock.external.user={user} is no user of this host") from error
