# SPDX-License-Identifier: Apache-2.0
"""Answers that callers wait for: the core knows them by number, the callers as futures."""

from __future__ import annotations

import asyncio
import itertools

from penstock.errors import ControlError


class Calls:
    """Open calls of one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[object]] = {}

    def open(self) -> int:
        """The number of a new call."""
        number = next(self._numbers)
        self._open[number] = asyncio.get_running_loop().create_future()
        return number

    async def wait(self, number: int) -> object:
        """The answer to a call; raises the error it was answered with. Forgets the call."""
        try:
            return await self._open[number]
        finally:
            del self._open[number]

    def answer(self, number: int, answer: object | Exception) -> None:
        """Answer a call; one whose caller has gone is ignored."""
        future = self._open.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def close(self) -> None:
        """Answer what is open: the JobMaster is closing."""
        for number in list(self._open):
            self.answer(number, ControlError("the JobMaster is closing"))
