# SPDX-License-Identifier: Apache-2.0
"""Results that the services of several hosts keep under one name, for later applications of the same user.

Rules: a result has a key of its own, drawn when it is kept. Each service that has a part of it keeps that part for
those who have the key, and knows the name. So does the service of the driver's host: there a driver finds it, since
the kernel says which user it runs as. The key travels in the words by which readers find a partition, as the
application's secret does, within Spark's closures.

All services prepare before the first one switches, and all have switched before the first one lets go of what had the
name before. So a driver or service may be killed at any step: there is a whole result under the name at each host,
the former one or the new one. A step that fails is undone everywhere; where a service that may have switched can't be
told so, nothing is given back, and both are whole.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from penstock.connection.protection import services_protection
from penstock.errors import PartitionError, PenstockError
from penstock.external.keys import KEY_BYTES, ApplicationKey
from penstock.external.requests import (
    PIECE_BYTES,
    PIECE_PARTITIONS,
    FindByName,
    ForgetFormer,
    FoundByName,
    PrepareKept,
    SwitchBack,
    SwitchKept,
    UndoKept,
)
from penstock.services.described_results import packed_result, unpacked_result
from penstock.services.external.client import call
from penstock.services.external.host_line import HostLine, HostSocket
from penstock.settings import Settings
from penstock.shuffle import PartitionId, ShuffleDescriptor
from penstock.shuffle.requests import Request

_LOG = logging.getLogger(__name__)
_CALL_SECONDS = 30.0
_OWN = ""
"""The address of the service on the driver's own host, which is asked over its socket."""

Asking = Callable[[str, Sequence[Request[Any]]], list[Any]]
"""Ask the service at an address some things, one after the other; raises PenstockError or OSError."""


class KeptResults:
    """The results of one user, in the name of one application."""

    def __init__(self, key: ApplicationKey, settings: Settings) -> None:
        self._key = key
        self._settings = settings

    async def keep(
        self, name: str, schema: bytes, partitions: Sequence[ShuffleDescriptor]
    ) -> list[ShuffleDescriptor]:
        """Keep these; the words that find them. PartitionError where a service has not kept its part."""
        key = secrets.token_bytes(KEY_BYTES)
        kept = [each if each.empty else replace(each, location=key.hex()) for each in partitions]
        parts: dict[str, list[PartitionId]] = defaultdict(list)
        for each in kept:
            if not each.empty:
                parts[each.address].append(each.partition)
        parts[_OWN] = []
        replacement = Replacement(name, key, packed_result(schema, kept), self._asked)
        await asyncio.to_thread(replacement.run, parts)
        return kept

    async def find(self, name: str) -> tuple[bytes, list[ShuffleDescriptor]] | None:
        """A result's schema and partitions, or None. NoStorageError where this host has no service."""
        description = await asyncio.to_thread(self._description, name)
        return None if description is None else unpacked_result(name, description)

    def _description(self, name: str) -> bytes | None:
        pieces: list[bytes] = []
        key = b""
        while True:
            found: FoundByName
            (found,) = self._asked(_OWN, [FindByName(name, sum(map(len, pieces)))])
            if not found.key:
                return None
            if found.key != key:  # the first answer, or another result has the name meanwhile
                restarts, key = bool(key), found.key
                if restarts:
                    pieces.clear()
                    continue
            pieces.append(found.description)
            if len(found.description) < PIECE_BYTES:
                return b"".join(pieces)

    def _asked(self, address: str, requests: Sequence[Request[Any]]) -> list[Any]:
        if address != _OWN:
            protection = services_protection(self._settings.tls)
            return call(self._key, address, requests, _CALL_SECONDS, protection)
        external = self._settings.external
        line = HostLine(
            HostSocket(external.socket, external.user),
            self._key,
            min(external.retry_timeout, _CALL_SECONDS),
            lambda: None,
        )
        try:
            return [line.ask(request) for request in requests]
        finally:
            line.close()


class Replacement:
    """One result that takes a name over, at all services that have a part of it, and the driver's own. It waits."""

    def __init__(self, name: str, key: bytes, description: bytes, ask: Asking) -> None:
        self._name = name
        self._key = key
        self._description = description
        self._ask = ask

    def run(self, parts: dict[str, list[PartitionId]]) -> None:
        """Prepare, switch, and forget the former one; PartitionError where the name means what it meant before."""
        name, key = self._name, self._key
        switched: list[str] = []
        try:
            for address, identities in parts.items():
                for request in self._pieces(identities):
                    self._ask(address, [request])
            for address in parts:
                switched.append(address)  # first: a service that is lost while it is told may have switched
                self._ask(address, [SwitchKept(name, key)])
        except (PenstockError, OSError) as error:
            self._undo(switched, parts)
            if isinstance(error, OSError):
                raise PartitionError(f"the result {name} can't be kept: {error}") from error
            raise
        except BaseException:
            self._undo(switched, parts)
            raise
        for address in parts:
            self._try(address, ForgetFormer(name, key))

    def _pieces(self, partitions: Sequence[PartitionId]) -> Iterator[PrepareKept]:
        name, key, described = self._name, self._key, self._description
        for at in range(0, len(described), PIECE_BYTES):
            yield PrepareKept(name, key, described[at : at + PIECE_BYTES], at)
        for at in range(0, len(partitions), PIECE_PARTITIONS):
            yield PrepareKept(name, key, partitions=tuple(partitions[at : at + PIECE_PARTITIONS]))

    def _undo(self, switched: Sequence[str], parts: Iterable[str]) -> None:
        """Give nothing back before it is known that no service gives this result by its name."""
        undone = [self._try(address, SwitchBack(self._name, self._key)) for address in switched]
        if all(undone):
            for address in parts:
                self._try(address, UndoKept(self._name, self._key))

    def _try(self, address: str, request: Request[Any]) -> bool:
        try:
            self._ask(address, [request])
        except (PenstockError, OSError) as error:
            where = address or "this host's service"
            _LOG.warning("%s was not told of %s for the result %s: %s", where, request.METHOD, self._name, error)
            return False
        return True
