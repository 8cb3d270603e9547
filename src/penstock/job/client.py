# SPDX-License-Identifier: Apache-2.0
"""A small synchronous client of the JobMaster, for the planning process and for tools.

Every call has a deadline or says that it has none. The secret is proved on the first call, and the server proves
itself before anything is trusted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from penstock.job.sessions import MASTER
from penstock.shuffle import control
from penstock.shuffle.control import Message
from penstock.shuffle.errors import AuthenticationError, ControlError

CALL_SECONDS = 30.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
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

    def call(self, method: str, message: Message, timeout: float | None = CALL_SECONDS) -> Message:
        """The answer; raises what the JobMaster raised, or ControlError where there is none in time."""
        return self._send(method, message, timeout, self._metadata())

    def instructions(self, message: Message) -> Iterator[Message]:
        """The stream of instructions; ends when the JobMaster ends it, raises ControlError when it breaks."""
        stream = self._channel.unary_stream(self._path(control.INSTRUCTIONS))
        try:
            for data in stream(control.pack(message), metadata=self._metadata()):
                yield control.raise_for_error(control.unpack(data))
        except grpc.RpcError as error:
            raise self._unanswered(control.INSTRUCTIONS, error) from error

    def close(self) -> None:
        """Hang up; idempotent."""
        with contextlib.suppress(Exception):
            self._channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._session is None:
            self._session = self._authenticate()
        return ((control.SESSION_HEADER, self._session),)

    def _authenticate(self) -> str:
        challenge = bytes(self._send(control.CHALLENGE, {}, CALL_SECONDS)["nonce"])
        mine, who = control.nonce(), self._identity
        message = {
            "nonce": challenge,
            "client_nonce": mine,
            "role": self._role,
            "identity": who,
            "proof": control.proof(self._secret, self._role, challenge, mine, who),
        }
        answer = self._send(control.AUTHENTICATE, message, CALL_SECONDS)
        expected = control.proof(self._secret, MASTER, mine, challenge, who)
        if not control.proof_matches(expected, bytes(answer["proof"])):
            raise AuthenticationError(f"{self._address} could not prove the application's secret")
        return str(answer["session"])

    def _send(
        self, method: str, message: Message, timeout: float | None, metadata: tuple[tuple[str, str], ...] = ()
    ) -> Message:
        call = self._channel.unary_unary(self._path(method))
        try:
            data: Any = call(control.pack(message), timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise self._unanswered(method, error) from error
        return control.raise_for_error(control.unpack(data))

    def _unanswered(self, method: str, error: Any) -> ControlError:
        return ControlError(
            f"the JobMaster at {self._address} did not answer {method}: {error.code().name} ({error.details()})"
        )

    @staticmethod
    def _path(method: str) -> str:
        return f"/{control.SERVICE}/{method}"
