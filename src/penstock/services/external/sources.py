# SPDX-License-Identifier: Apache-2.0
"""Host services, as a gate that fetches needs them."""

from __future__ import annotations

from pathlib import Path

from penstock.connection.protection import Protection
from penstock.connection.transport import host_in, split_host
from penstock.external.keys import ApplicationKey
from penstock.services.external.channel import ExternalChannel
from penstock.services.external.fetches import ServiceFetches
from penstock.services.external.host_line import HostSocket
from penstock.services.external.lending import Lender, is_of_this_host
from penstock.services.external.session import ServiceSession
from penstock.services.fetching.line import LinePatience, ServiceLine
from penstock.services.fetching.wire import Wire
from penstock.settings import ExternalSettings
from penstock.shuffle import ChannelDescriptor, InputGateDescriptor, MetricGroup, ShuffleDescriptor


class ExternalSources:
    """The services of all hosts, for one application."""

    def __init__(
        self, settings: ExternalSettings, key: ApplicationKey, protection: Protection, metrics: MetricGroup
    ) -> None:
        self._settings = settings
        self._key = key
        self._protection = protection
        self._metrics = metrics
        self._is_here: dict[str, bool] = {}
        """By host."""
        self._lenders: dict[str, Lender] = {}
        """By the key of a result that is kept by name; of the application under no key."""

    def channel(self, number: int, wanted: ChannelDescriptor, gate: InputGateDescriptor) -> ExternalChannel:
        """A channel of a gate."""
        deadline, lender = self._settings.request_timeout, self._lender(wanted.source)
        return ExternalChannel(number, wanted, gate.schema, deadline, lender)

    def line_name(self, source: ShuffleDescriptor) -> str:
        """The address of its service, and the key of a result that is kept by name."""
        return f"{source.address} {source.location}"

    def line(self, source: ShuffleDescriptor) -> ServiceLine:
        """The line to the service of this partition, in the name of the application, or of a result that was kept."""
        address, protection = source.address, self._protection
        place, key = split_host(address), self._key_of(source)
        patience = LinePatience(
            self._settings.retry_timeout, "spark.penstock.external.retryTimeout", f"the host service at {address}"
        )
        return ServiceLine(ServiceFetches(), lambda: Wire(place, ServiceSession(key, address), protection), patience)

    def close(self) -> None:
        """Give back what was lent; idempotent."""
        for lender in self._lenders.values():
            lender.close()
        self._lenders.clear()

    def _lender(self, source: ShuffleDescriptor) -> Lender | None:
        """The service of this partition, where it is this host's."""
        host = host_in(source.address)
        if not self._settings.lending or not Path(self._settings.socket).exists():
            return None
        if host not in self._is_here:
            self._is_here[host] = is_of_this_host(host)
        if not self._is_here[host]:
            return None
        if source.location not in self._lenders:
            place = HostSocket(self._settings.socket, self._settings.user)
            self._lenders[source.location] = Lender(place, self._key_of(source), self._note)
        return self._lenders[source.location]

    def _key_of(self, source: ShuffleDescriptor) -> ApplicationKey:
        return ApplicationKey("", bytes.fromhex(source.location)) if source.location else self._key

    def _note(self, size: int) -> None:
        self._metrics.add("bytes_in", size)
        self._metrics.add("disk_bytes_in", size)
