# SPDX-License-Identifier: Apache-2.0
"""The line to the manager: asks again, over a new connection, until it is answered or patience ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import Credentials
from penstock.connection.protection import Protection, services_protection
from penstock.connection.transport import split_host
from penstock.errors import ControlError, EnvironmentLostError, NoStorageError, SettingError, StorageError
from penstock.remote.peers import Way, address_of, application_credentials, asked
from penstock.remote.wire import PeerLogic
from penstock.settings import RemoteSettings, Settings
from penstock.shuffle.requests import Request

A = TypeVar("A")
_ANSWER_SECONDS = 15.0
_LEAST_SECONDS = 0.5
_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.5)


def manager_place(settings: RemoteSettings) -> tuple[str, int]:
    """Host and port of the manager; SettingError where nothing says where the service is."""
    if not settings.manager:
        raise SettingError(
            "the remote shuffle service has no address: set spark.penstock.remote.manager to host:port of its"
            " manager (penstock service remote manager)"
        )
    address = address_of(settings.manager)
    return split_host(address, address.partition("://")[0])


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """The way of an application to the service: its name, the manager, its patience."""

    own: Credentials
    manager: str
    settings: RemoteSettings
    protection: Protection

    @classmethod
    def of(cls, wished: Settings, application: str, process: str, secret: bytes) -> RemoteAccess:
        """The access of an application; SettingError where nothing says where the service is."""
        settings = wished.remote
        manager_place(settings)
        own = application_credentials(wished.access.user, application, process, secret)
        return cls(own, address_of(settings.manager), settings, services_protection(wished.tls))


class ManagerLine:
    """The manager, as one application's driver or task asks it. In one event loop."""

    def __init__(self, access: RemoteAccess) -> None:
        self.access = access
        self._way = Way(access.manager, access.own, access.protection)
        self._logic: PeerLogic | None = None
        self._connection: FrameConnection[Any] | None = None
        self._lock = asyncio.Lock()

    async def ask(self, request: Request[A], patience: float | None = None) -> A:
        """The manager's answer, or the error that it is; ControlError after `patience` seconds (or `retryTimeout`).

        A manager whose disk takes nothing is asked again as well; then it is its StorageError.
        """
        loop = asyncio.get_running_loop()
        limit = self.access.settings.retry_timeout if patience is None else patience
        end, turn = loop.time() + limit, 0
        while True:
            try:
                logic = await self._connected()
                left = max(_LEAST_SECONDS, min(_ANSWER_SECONDS, end - loop.time()))
                return cast("A", await self._answer(logic, request, left))
            except NoStorageError:
                raise
            except (EnvironmentLostError, StorageError) as error:
                pause = _PAUSES[min(turn, len(_PAUSES) - 1)]
                if loop.time() + pause > end:
                    if isinstance(error, StorageError):
                        raise
                    raise ControlError(
                        f"the manager of the remote shuffle service at {self._way.address} does not answer for"
                        f" {limit:g} s (spark.penstock.remote.retryTimeout): {error}"
                    ) from error
                turn += 1
                await asyncio.sleep(pause)

    async def _answer(self, logic: PeerLogic, request: Request[A], seconds: float) -> Any:
        """The answer over this connection, which is given up where none comes: something may have been lost on it."""
        try:
            async with asyncio.timeout(seconds):
                return await asked(logic, request)
        except TimeoutError:
            if self._logic is logic:
                self.close()
                self._logic = None
            raise EnvironmentLostError(f"it gave no answer for {seconds:.0f} s") from None

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connected(self) -> PeerLogic:
        async with self._lock:
            if self._logic is None:
                logic = PeerLogic({}, {}, lambda _: self._lost(logic))
                self._connection = await self._way.connect(logic)
                self._logic = logic
            return self._logic

    def _lost(self, logic: PeerLogic) -> None:
        if self._logic is logic:
            self._logic = self._connection = None
