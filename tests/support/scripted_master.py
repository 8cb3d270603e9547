# SPDX-License-Identifier: Apache-2.0
"""A JobMaster that says what a test wants; who calls it has to prove the secret as ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.connection.door import Door
from penstock.connection.frame_connection import FrameConnection
from penstock.connection.frames import frame
from penstock.connection.handshake import Credentials, Service
from penstock.connection.sockets import TcpTransport
from penstock.connection.transport import Endpoint, Listener
from penstock.errors import PenstockError
from penstock.link import control
from penstock.link.frames import LinkFrameType, read_call, reply_frame
from penstock.link.rpc import FrameLogic
from penstock.link.wire import Plain

SECRET = b"0123456789abcdef"


class ScriptedMaster:
    """Notes what it is told. `answer` may raise: a PenstockError is answered, a ConnectionError hangs up."""

    def __init__(self, answer: Callable[[str, Plain], None] = lambda _, __: None) -> None:
        self.heard: list[tuple[str, Plain]] = []
        self.questions: list[int] = []
        """The numbers under which questions came."""
        self.changed = asyncio.Event()
        self.address = ""
        self._instructions: list[Plain | None] = []
        self._answer = answer
        self._door: Door[Endpoint] = Door(Service.MASTER, Credentials("master", SECRET), self._enter)
        self._listener: Listener
        self._connections: list[_Connection] = []

    async def start(self) -> None:
        """Listen."""
        self._listener = await TcpTransport().listen("tcp://127.0.0.1:0", self._door.come)
        self.address = self._listener.address.removeprefix("tcp://")

    def close(self) -> None:
        """Hang up."""
        self._listener.close()
        self._door.close()
        for connection in self._connections:
            connection.frames.close()

    def instruct(self, *plains: Plain | None) -> None:
        """Say this over the connection that there is, and over those to come: None ends one."""
        self._instructions += plains
        self._speak()

    def told(self, method: str) -> list[Plain]:
        """The messages that came by this method."""
        return [message for name, message in self.heard if name == method]

    def hear(self, connection: _Connection, body: memoryview) -> None:
        """A call has come."""
        number, method, message, question = read_call(body)
        self.heard.append((method, message))
        if question:
            self.questions.append(question)
        self.changed.set()
        try:
            self._answer(method, message)
        except PenstockError as error:
            connection.logic.send(reply_frame(number, control.error_message(error)))
        except ConnectionError:
            connection.frames.close()
        else:
            connection.logic.send(reply_frame(number, {}))
        if method == "AttachEnvironment":
            connection.is_attached = True
            self._speak()

    def _enter(self, endpoint: Endpoint, _: str) -> None:
        self._connections.append(_Connection(self, endpoint))

    def _speak(self) -> None:
        last = self._connections[-1] if self._connections else None
        while self._instructions and last is not None and last.is_attached and not last.frames.is_closed:
            plain = self._instructions.pop(0)
            if plain is None:
                asyncio.get_running_loop().call_soon(last.frames.close)
                last.is_attached = False
            else:
                last.logic.send(frame(LinkFrameType.COMMAND, control.pack(plain)))


class _Connection:
    def __init__(self, master: ScriptedMaster, endpoint: Endpoint) -> None:
        self.is_attached = False
        self.logic = FrameLogic({LinkFrameType.CALL: lambda body: master.hear(self, body)})
        self.frames = FrameConnection(endpoint, self.logic, lambda *_: None)
