# SPDX-License-Identifier: Apache-2.0
"""A blocking client of the JobMaster for tests: an environment's connection, word for word.

A thread receives. `cut` breaks the connection off, as a network does.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.connection.frames import FrameReader
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.errors import ControlError, EnvironmentLostError
from penstock.link.commands import Command, number_of, read_instruction
from penstock.link.control import raise_for_error, unpack
from penstock.link.frames import LinkFrameType, call_frame, read_reply
from penstock.link.wire import Plain, from_wire, to_wire
from penstock.shuffle.requests import Request
from penstock.testing import DEADLINE

A = TypeVar("A")


def shaken(address: str, secret: bytes, identity: str, service: Service = Service.MASTER) -> socket.socket:
    """A socket over which both ends have proved themselves; raises what the handshake does, or OSError."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), DEADLINE)
    try:
        hands = Handshake(Role.CLIENT, service, Credentials(identity, secret), address)
        connection.sendall(hands.outgoing())
        while not hands.is_done:
            try:
                data = connection.recv(hands.missing)
            except ConnectionResetError:
                data = b""
            hands.feed(data)
            connection.sendall(hands.outgoing())
    except BaseException:
        connection.close()
        raise
    return connection


class MasterClient:
    """One connection that has proved itself."""

    def __init__(self, address: str, secret: bytes, identity: str) -> None:
        self._address = address
        self._socket = shaken(address, secret, identity)
        self._socket.settimeout(None)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, Future[Plain]] | None = {}
        """Those that are waited for; None when the connection has ended."""
        self.commands: queue.Queue[tuple[int, Command] | None] = queue.Queue()
        """Those that came, with their numbers; None is the end of the connection."""
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def ask(self, request: Request[A], timeout: float = DEADLINE) -> A:
        """The answer; raises what the JobMaster raised, or ControlError where there is none."""
        try:
            plain = self.begin(request).result(timeout)
        except TimeoutError as error:
            raise ControlError(f"{request.METHOD} was not answered within {timeout} s") from error
        answer: A = from_wire(request.ANSWER, raise_for_error(plain))
        return answer

    def begin(self, request: Request[Any], question: int = 0) -> Future[Plain]:
        """The answer to come, an error in it too; `question` is the number under which it is asked again."""
        return self.call(request.METHOD, to_wire(request), question)

    def call(self, method: str, message: Plain, question: int = 0) -> Future[Plain]:
        """The answer to come to any message."""
        answer: Future[Plain] = Future()
        with self._lock:
            if self._answers is None:
                raise ControlError(f"the JobMaster at {self._address} has hung up")
            number = next(self._numbers)
            self._answers[number] = answer
            try:
                self._socket.sendall(call_frame(number, method, message, question))
            except OSError as error:
                del self._answers[number]
                raise ControlError(f"the JobMaster at {self._address} is gone: {error}") from error
        return answer

    def cut(self) -> None:
        """Break the connection off."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE)
        self._socket.close()

    close = cut

    def _receive(self) -> None:
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while count := self._socket.recv_into(reader.next_target()):
                reader.received(count)
                while (found := reader.next_message()) is not None:
                    self._take(*found)
        self.commands.put(None)
        with self._lock:
            open_calls, self._answers = self._answers or {}, None
        for answer in open_calls.values():
            answer.set_exception(EnvironmentLostError(f"the JobMaster at {self._address} has hung up"))

    def _take(self, kind: int, body: memoryview) -> None:
        if kind == LinkFrameType.COMMAND:
            plain = unpack(body)
            self.commands.put((number_of(plain), read_instruction(plain)))
            return
        assert kind == LinkFrameType.REPLY, kind
        number, answer = read_reply(body)
        with self._lock:
            assert self._answers is not None
            waiting = self._answers.pop(number)
        waiting.set_result(answer)
