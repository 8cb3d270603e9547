# SPDX-License-Identifier: Apache-2.0
"""A small synchronous client of the JobMaster, for the planning process and for tools.

Every call has a deadline or says that it has none. The secret is proved on the first call, and the server proves
itself before anything is trusted.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, TypeVar

from penstock.link import control
from penstock.link.master import Challenge, MasterProof, Metadata, call_of
from penstock.link.rpc import grpc
from penstock.link.wire import from_wire
from penstock.shuffle.errors import ControlError
from penstock.shuffle.requests import Request

A = TypeVar("A")

CALL_SECONDS = 90.0
"""Longer than a driver may pause."""
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    # A driver that pauses answers no pings; one that is killed closes the connection.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 90_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


class MasterClient:
    """One authenticated connection. Use as a context manager, or `close` it."""

    def __init__(self, address: str, secret: bytes, role: str, identity: str) -> None:
        self._address = address
        self._secret = secret
        self._role = role
        self._identity = identity
        self._session: str | None = None
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)

    def __enter__(self) -> MasterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: Request[A], timeout: float | None = CALL_SECONDS) -> A:
        """The answer; raises what the JobMaster raised, or ControlError where there is none in time."""
        return self._send(request, timeout, self._metadata())

    def close(self) -> None:
        """Hang up; idempotent."""
        with contextlib.suppress(Exception):
            self._channel.close()

    def _metadata(self) -> Metadata:
        if self._session is None:
            self._session = self._authenticate()
        return ((control.SESSION_HEADER, self._session),)

    def _authenticate(self) -> str:
        proof = MasterProof(self._secret, self._role, self._identity)
        challenged = self._send(Challenge(), CALL_SECONDS)
        return proof.check(self._send(proof.answer(challenged), CALL_SECONDS), self._address)

    def _send(self, request: Request[A], timeout: float | None, session: Metadata = ()) -> A:
        call = self._channel.unary_unary(self._path(request))
        message, metadata = call_of(request, session)
        try:
            data: Any = call(message, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise self._unanswered(request, error) from error
        answer: A = from_wire(request.ANSWER, control.raise_for_error(control.unpack(data)))
        return answer

    def _unanswered(self, request: Request[Any], error: Any) -> ControlError:
        what = f"{request.METHOD}: {error.code().name} ({error.details()})"
        return ControlError(f"the JobMaster at {self._address} did not answer {what}")

    @staticmethod
    def _path(request: Request[Any]) -> str:
        return f"/{control.SERVICE}/{request.METHOD}"
