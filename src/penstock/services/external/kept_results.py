# SPDX-License-Identifier: Apache-2.0
"""Results that the services of several hosts keep under one name, for later applications of the same user.

Rules: a result has a key of its own, drawn when it is kept. Each service that has a part of it takes that part over
for whoever has the key, and knows the name, so does the service of the driver's host: there a driver finds it, since
the kernel says which user it runs as. The key travels in the words by which readers find a partition, as the
application's secret does, within Spark's closures.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from penstock.connection.protection import services_protection
from penstock.errors import PartitionError, PenstockError
from penstock.external.keys import KEY_BYTES, ApplicationKey
from penstock.external.requests import FindByName, FoundByName, KeepByName
from penstock.services.described_results import packed_result, unpacked_result
from penstock.services.external.client import call
from penstock.services.external.host_line import HostLine
from penstock.settings import Settings
from penstock.shuffle import PartitionId, ShuffleDescriptor
from penstock.shuffle.requests import Request

A = TypeVar("A")
_CALL_SECONDS = 30.0


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
        description = packed_result(schema, kept)
        parts: dict[str, list[PartitionId]] = defaultdict(list)
        for each in kept:
            if not each.empty:
                parts[each.address].append(each.partition)
        protection = services_protection(self._settings.tls)
        for address, identities in parts.items():
            request = KeepByName(name, key, description, tuple(identities))
            try:
                await asyncio.to_thread(call, self._key, address, [request], _CALL_SECONDS, protection)
            except OSError as error:
                raise PartitionError(f"the result {name} can't be kept at {address}: {error}") from error
        await asyncio.to_thread(self._tell_own_host, KeepByName(name, key, description, ()))
        return kept

    async def find(self, name: str) -> tuple[bytes, list[ShuffleDescriptor]] | None:
        """A result's schema and partitions, or None. NoStorageError where this host has no service."""
        found: FoundByName = await asyncio.to_thread(self._at_own_host, FindByName(name))
        return unpacked_result(name, found.description) if found.key else None

    def _tell_own_host(self, request: KeepByName) -> None:
        """Make the name known where a later driver looks, unless this host keeps a part of the result anyway."""
        try:
            found = self._at_own_host(FindByName(request.name))
            if found.key != request.key:
                self._at_own_host(request)
        except PenstockError as error:
            raise PartitionError(
                f"the result {request.name} is kept, and a later driver on this host can't find it: {error}"
            ) from error

    def _at_own_host(self, request: Request[A]) -> A:
        settings = self._settings.external
        line = HostLine(settings.socket, self._key, min(settings.retry_timeout, _CALL_SECONDS), lambda: None)
        try:
            return line.ask(request)
        finally:
            line.close()
