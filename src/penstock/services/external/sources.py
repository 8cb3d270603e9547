# SPDX-License-Identifier: Apache-2.0
"""Host services, as a gate that fetches needs them."""

from __future__ import annotations

from penstock.connection.protection import Protection
from penstock.connection.transport import split_host
from penstock.external.keys import ApplicationKey
from penstock.services.external.channel import ExternalChannel
from penstock.services.external.fetches import ServiceFetches
from penstock.services.external.session import ServiceSession
from penstock.services.fetching.line import LinePatience, ServiceLine
from penstock.services.fetching.wire import Wire
from penstock.settings import ExternalSettings
from penstock.shuffle import ChannelDescriptor, InputGateDescriptor, ShuffleDescriptor


class ExternalSources:
    """The services of all hosts, for one application."""

    def __init__(self, settings: ExternalSettings, key: ApplicationKey, protection: Protection) -> None:
        self._settings = settings
        self._key = key
        self._protection = protection

    def channel(self, number: int, wanted: ChannelDescriptor, gate: InputGateDescriptor) -> ExternalChannel:
        """A channel of a gate."""
        return ExternalChannel(number, wanted, gate.schema, self._settings.request_timeout)

    def line_name(self, source: ShuffleDescriptor) -> str:
        """The address of its service, and the key of a result that is kept by name."""
        return f"{source.address} {source.location}"

    def line(self, source: ShuffleDescriptor) -> ServiceLine:
        """The line to the service of this partition, in the name of the application, or of a result that was kept."""
        address, protection = source.address, self._protection
        place = split_host(address)
        key = ApplicationKey("", bytes.fromhex(source.location)) if source.location else self._key
        patience = LinePatience(
            self._settings.retry_timeout, "spark.penstock.external.retryTimeout", f"the host service at {address}"
        )
        return ServiceLine(ServiceFetches(), lambda: Wire(place, ServiceSession(key, address), protection), patience)
