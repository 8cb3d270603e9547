# SPDX-License-Identifier: Apache-2.0
"""Questions to a host service's port, a connection for each call, with a deadline: for the driver, and releases.

A connection that ends before both sides have proved themselves has asked nothing. It is made again, within the
deadline: a service that stood still, and finds many callers at its door, lets the first ones go for those after them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.connection.protection import Protection
from penstock.connection.transport import split_host
from penstock.external.keys import ApplicationKey
from penstock.link.control import raise_for_error
from penstock.link.wire import from_wire
from penstock.services.external.session import ServiceReply, ServiceSession
from penstock.services.fetching.wire import Wire
from penstock.shuffle.requests import Request

_LOOK_SECONDS = 0.05
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 0.0)
"""Seconds after each try. A service that does not know the application ends the connection too, each time."""
_LOOPBACK = Protection()


def call(
    key: ApplicationKey,
    address: str,
    requests: Sequence[Request[Any]],
    seconds: float,
    protection: Protection = _LOOPBACK,
    check: Callable[[], object] = lambda: None,
) -> list[Any]:
    """The answers; raises what the service raised, ConnectionError or TimeoutError where there is none."""
    deadline = time.monotonic() + seconds
    for pause in _PAUSES:
        session = ServiceSession(key, address)
        try:
            plain = _asked(session, requests, address, protection, check, deadline)
            break
        except ConnectionError:
            waited = pause * random.uniform(0.5, 1.5)  # noqa: S311 - so that those who were sent away come apart
            if session.is_ready or not pause or time.monotonic() + waited > deadline:
                raise
        check()
        time.sleep(waited)
    answers = [raise_for_error(each) for each in plain]
    return [from_wire(each.ANSWER, answer) for each, answer in zip(requests, answers, strict=True)]


def _asked(
    session: ServiceSession,
    requests: Sequence[Request[Any]],
    address: str,
    protection: Protection,
    check: Callable[[], object],
    deadline: float,
) -> list[Any]:
    """The answers as they came, over one connection."""
    seconds = deadline - time.monotonic()
    wire = Wire(split_host(address), session, protection)
    try:
        numbers = [session.ask(request) for request in requests]
        plain: dict[int, Any] = {}
        while len(plain) < len(numbers):
            check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the host service at {address} did not answer within {seconds:.0f} s")
            wire.wait(min(left, _LOOK_SECONDS))
            plain |= {message.call: message.plain for message in wire.move() if isinstance(message, ServiceReply)}
    finally:
        wire.close()
    return [plain[number] for number in numbers]
