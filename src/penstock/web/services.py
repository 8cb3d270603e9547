# SPDX-License-Identifier: Apache-2.0
"""The processes of shuffle services as a page shows them: disks and users, as their metrics endpoints tell them.

Rules: an endpoint is asked when a page looks, all of them beside each other. A look takes `SECONDS` at most: an
endpoint that has not answered stays as it was, is silent since then, and is not asked again meanwhile. Limits: host
services and workers of the remote service serve many users, and only their endpoints know them all: who may reach
these may know who uses the services.
"""

from __future__ import annotations

import logging
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from penstock.job.shell.processes import ProcessNow
from penstock.link.figures import UseFigures, UseKind
from penstock.observe.catalogue import USES

_LOG = logging.getLogger(__name__)

SECONDS = 1.5
_MOST_BYTES = 16 << 20
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""These are our own hosts, and no proxy's."""
_FIGURES = {metric.name: (UseKind(kind), metric.figure) for kind, metrics in USES.items() for metric in metrics}


class ServiceProcesses:
    """The processes whose metrics are at these addresses, `host:port`; a page calls it."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._told = {address: ProcessNow(address, address, 0, address, 0.0, {}, (), ()) for address in addresses}
        self._heard = dict.fromkeys(addresses, time.monotonic())
        self._asked: dict[str, Future[None]] = {}
        self._asking = ThreadPoolExecutor(max(1, len(addresses)), "penstock-services")
        self._looking = ThreadPoolExecutor(1, "penstock-services-page")
        self._look_now: Future[tuple[ProcessNow, ...]] | None = None

    def __call__(self) -> Future[tuple[ProcessNow, ...]]:
        """All of them, as soon as they have answered or are too late; all who ask meanwhile get the same look."""
        if self._look_now is None or self._look_now.done():
            self._look_now = self._looking.submit(self._look)
        return self._look_now

    def close(self) -> None:
        """Ask no more, without a wait for calls under way; idempotent."""
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> tuple[ProcessNow, ...]:
        for address in self._told:
            if address not in self._asked or self._asked[address].done():
                self._asked[address] = self._asking.submit(self._ask, address)
        wait(self._asked.values(), SECONDS)
        now = time.monotonic()
        return tuple(replace(told, silent=now - self._heard[address]) for address, told in self._told.items())

    def _ask(self, address: str) -> None:
        try:
            with _DIRECT.open(f"http://{address}/metrics", timeout=SECONDS) as answer:
                text = answer.read(_MOST_BYTES).decode()
            self._told[address] = process_of(address, text)
        except (OSError, ValueError, LookupError) as error:
            _LOG.debug("the metrics of %s can't be had: %r", address, error)
            return
        self._heard[address] = time.monotonic()


def process_of(address: str, text: str) -> ProcessNow:
    """A process out of its metrics; ValueError where they are none."""
    from prometheus_client.parser import text_string_to_metric_families

    name = address
    uses: dict[tuple[UseKind, str], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _FIGURES:
                kind, figure = _FIGURES[sample.name]
                name = sample.labels["environment"]
                uses.setdefault((kind, sample.labels[kind.value]), {})[figure] = sample.value
    found: Any = (UseFigures(kind, use, figures) for (kind, use), figures in uses.items())
    host = address.rpartition(":")[0]
    return ProcessNow(name, host, 0, address, 0.0, {}, (), (), tuple(found))
