# SPDX-License-Identifier: Apache-2.0
"""One connection of an environment to the JobMaster, with the calls that are open on it.

It lasts until it breaks, and knows nothing of the one before or after it: what is asked again over the next one is
`MasterLink`'s.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from penstock.connection.frame_connection import FrameConnection
from penstock.errors import ControlError
from penstock.link.control import unpack
from penstock.link.frames import LinkFrameType
from penstock.link.rpc import FrameLogic, OpenCalls
from penstock.link.wire import Plain
from penstock.shuffle.requests import Request


class NotAnsweredError(ControlError):
    """The JobMaster did not answer, but may yet. `is_late`: the connection is open, and nothing comes over it.

    `patience`: if this goes on for so many seconds, it is gone for good; None where only the lease says that.
    """

    def __init__(self, text: str, *, patience: float | None = None, is_late: bool = False) -> None:
        super().__init__(text)
        self.patience = patience
        self.is_late = is_late


class MasterLine:
    """One connection to the JobMaster, with the calls that are open on it."""

    connection: FrameConnection[tuple[int, memoryview]]

    def __init__(self, command: Callable[[Plain], None]) -> None:
        self._command = command
        self._calls = OpenCalls()
        self._waiting: set[asyncio.Future[Plain]] = set()
        self.logic = FrameLogic({LinkFrameType.REPLY: self._calls.answer, LinkFrameType.COMMAND: self._obey})
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended; raises what can't be obeyed, else gives the cause."""

    async def ask(self, request: Request[Any], question: int) -> Plain:
        """The answer; raises NotAnsweredError where the connection ends before."""
        if self.connection.is_closed:
            raise NotAnsweredError(f"{request.METHOD}: the connection to the JobMaster has ended")
        answer: asyncio.Future[Plain] = asyncio.get_running_loop().create_future()
        number, data = self._calls.ask(request, functools.partial(_settle, answer), question)
        self._waiting.add(answer)
        try:
            self.logic.send(data)
            return await answer
        finally:
            self._waiting.discard(answer)
            self._calls.give_up(number)

    def closed(self, cause: BaseException | None) -> None:
        """The connection has ended."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(NotAnsweredError("the connection to the JobMaster ended before it answered"))
        if not self.ended.done():
            self.ended.set_result(cause)

    def _obey(self, body: memoryview) -> None:
        try:
            self._command(unpack(body))
        except Exception as error:  # noqa: BLE001 - an environment that does not obey must not live on
            self.ended.set_exception(error)
            self.connection.close()


def _settle(answer: asyncio.Future[Plain], plain: Plain) -> None:
    if not answer.done():
        answer.set_result(plain)
