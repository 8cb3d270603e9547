# SPDX-License-Identifier: Apache-2.0
"""Questions to a host service's port, a connection for each call, with a deadline: for the driver, and releases."""

from __future__ import annotations

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
    session = ServiceSession(key, address)
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
    answers = [raise_for_error(plain[number]) for number in numbers]
    return [from_wire(each.ANSWER, answer) for each, answer in zip(requests, answers, strict=True)]
