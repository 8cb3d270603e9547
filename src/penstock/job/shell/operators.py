# SPDX-License-Identifier: Apache-2.0
"""Answers operators of an application's queries: each question on a thread of its own, as it may take long."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError, ProtocolError
from penstock.link import control
from penstock.link.operator import OPERATORS, ListQueries, QueryList
from penstock.link.wire import Plain, from_wire, to_wire
from penstock.shuffle.requests import Request

_LOG = logging.getLogger(__name__)

Office = Callable[[Request[Any]], object]
"""Does what an operator asks, and gives the answer; blocks meanwhile, and raises what the operator is to be told."""


class Operators:
    """The operators of one application; until it has an `office` it has no queries."""

    def __init__(self) -> None:
        self.office: Office = _nobody

    async def answer(self, method: str, message: Plain) -> Plain:
        """The answer to a question, an error too."""
        try:
            kind = OPERATORS.get(method)
            if kind is None:
                raise ProtocolError(f"there is no call {method} for an operator")
            return to_wire(await _on_thread(self.office, from_wire(kind, message)))
        except PenstockError as error:
            return control.error_message(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the operator is told
            _LOG.exception("%s failed", method)
            return control.error_message(PenstockError(f"{method} failed: {error!r}"))


async def _on_thread(office: Office, request: Request[Any]) -> object:
    done: concurrent.futures.Future[object] = concurrent.futures.Future()

    def work() -> None:
        try:
            done.set_result(office(request))
        except BaseException as error:  # noqa: BLE001 - raised in the loop
            done.set_exception(error)

    threading.Thread(target=work, name="penstock-operator", daemon=True).start()
    return await asyncio.wrap_future(done)


def _nobody(request: Request[Any]) -> object:
    if isinstance(request, ListQueries):
        return QueryList(())
    raise PenstockError("this session has no streaming queries")
