# SPDX-License-Identifier: Apache-2.0
"""Spark's shuffle services, as a gate that fetches needs them."""

from __future__ import annotations

from penstock.services.fetching.line import LinePatience, ServiceLine
from penstock.services.fetching.wire import Wire
from penstock.services.spark_ess.channel import ChannelPatience, ChannelReader
from penstock.services.spark_ess.client import Access, address_of
from penstock.services.spark_ess.fetches import Fetches
from penstock.settings import EssSettings
from penstock.shuffle import ChannelDescriptor, InputGateDescriptor, ShuffleDescriptor


class EssSources:
    """The services that an application may read from."""

    def __init__(self, settings: EssSettings, access: Access) -> None:
        self._access = access
        self._patience = ChannelPatience(settings.request_timeout, settings.retry_timeout)

    def channel(self, number: int, wanted: ChannelDescriptor, gate: InputGateDescriptor) -> ChannelReader:
        """A channel of a gate."""
        return ChannelReader(number, wanted, gate.schema, self._patience)

    def line_name(self, source: ShuffleDescriptor) -> str:
        """The address of its service."""
        return source.address

    def line(self, source: ShuffleDescriptor) -> ServiceLine:
        """The line to the service of this partition."""
        access, place = self._access, address_of(source.address)
        host, port = place
        patience = LinePatience(
            access.patience, "spark.penstock.ess.retryTimeout", f"the shuffle service at {host}:{port}"
        )
        return ServiceLine(Fetches(access.application), lambda: Wire(place, access.session()), patience)

    def close(self) -> None:
        """Nothing is held but lines."""
