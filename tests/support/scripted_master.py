# SPDX-License-Identifier: Apache-2.0
"""A JobMaster's gRPC face that says what a test wants; who calls it has to prove the secret as ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from penstock.job.shell.server import handshake
from penstock.job.shell.sessions import Sessions
from penstock.link import control, master
from penstock.link.wire import Plain
from penstock.shuffle.errors import PenstockError

SECRET = b"0123456789abcdef"


class ScriptedMaster:
    """Notes what it is told. `answer` may raise: a PenstockError is answered, anything else breaks the call off."""

    def __init__(self, answer: Callable[[str, Plain], None] = lambda _, __: None) -> None:
        self.heard: list[tuple[str, Plain]] = []
        self.questions: list[int] = []
        """The numbers under which questions came."""
        self.changed = asyncio.Event()
        self.instructions: asyncio.Queue[Plain | None] = asyncio.Queue()
        self.address = ""
        self._answer = answer
        self._sessions = Sessions(SECRET)
        self._server = grpc.aio.server()

    async def start(self) -> None:
        """Listen."""
        unary, strangers = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        methods = {
            "Challenge": strangers(handshake(master.Challenge, self._sessions.challenge)),
            "Authenticate": strangers(handshake(master.Authenticate, self._sessions.authenticate)),
            "Listen": grpc.unary_stream_rpc_method_handler(self._stream),
        }
        for name in ("AttachEnvironment", "Heartbeat", "PartitionConsumable", "TaskLost", *master.RELAYED):
            methods[name] = unary(self._note(name))
        handler = grpc.method_handlers_generic_handler(control.SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def close(self) -> None:
        """Hang up."""
        await self._server.stop(None)

    def told(self, method: str) -> list[Plain]:
        """The messages that came by this method."""
        return [message for name, message in self.heard if name == method]

    def _note(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def run(data: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata() or ())
            self._sessions.check(str(metadata.get(control.SESSION_HEADER, "")), method, context.peer())
            message = control.unpack(data)
            self.heard.append((method, message))
            if control.QUESTION_HEADER in metadata:
                self.questions.append(int(metadata[control.QUESTION_HEADER]))
            self.changed.set()
            try:
                self._answer(method, message)
            except PenstockError as error:
                return control.pack(control.error_message(error))
            except ConnectionError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return control.pack({})

        return run

    async def _stream(self, data: bytes, _: Any) -> AsyncIterator[bytes]:
        self.heard.append(("Listen", control.unpack(data)))
        while (message := await self.instructions.get()) is not None:
            yield control.pack(message)
