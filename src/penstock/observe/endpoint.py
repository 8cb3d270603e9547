# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint of a long-lived process, in one way for all: the driver's, the environments'.

It runs on the process's own event loop, where the figures are, and needs no thread of its own to listen; a scrape's
text is made beside the loop. Limits: clients prove nothing here, so all that reach the address can read names of jobs
and stages, and figures; the address is the loopback unless a setting says otherwise. Of HTTP it knows `GET /metrics`.
The library is imported when an endpoint opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.observe.http_server import HttpAnswer, HttpPlace, HttpRequest, HttpServer
from penstock.observe.samples import Sample
from penstock.settings import ObserveSettings
from penstock.shuffle.metrics import MetricKind

_LOG = logging.getLogger(__name__)

_REMEDY = "See spark.penstock.observe.metricsHost and .metricsPort"

Samples = Callable[[], Iterable[Sample]]
"""Gives the samples of this moment; called on the loop."""


class MetricsEndpoint:
    """One process's endpoint; without the setting it stays closed, and `address` empty."""

    def __init__(self, settings: ObserveSettings, samples: Samples) -> None:
        self.address = ""
        """The place, `host:port`, where `/metrics` is."""
        self._is_wanted = settings.metrics
        self._samples = samples
        place = HttpPlace("metrics", settings.metrics_host, settings.metrics_port, _REMEDY)
        self._server = HttpServer(place, self._answer)

    async def open(self) -> None:
        """Listen, where the setting says so. Raises SettingError where no port can be had."""
        if not self._is_wanted:
            return
        import prometheus_client  # noqa: F401 - a scrape should not be the first to import it

        self.address = await self._server.open()
        _LOG.info("metrics are at http://%s/metrics", self.address)

    async def close(self) -> None:
        """Serve no more, and hang up; idempotent."""
        await self._server.close()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if request.method != "GET" or request.path != "/metrics":
            return HttpAnswer(404, "text/plain; charset=utf-8", b"metrics are at /metrics\n")
        samples, accept = list(self._samples()), request.headers.get("accept", "")
        kind, text = await asyncio.get_running_loop().run_in_executor(None, rendered, samples, accept)
        return HttpAnswer(200, kind, text)


def rendered(samples: Iterable[Sample], accept: str = "") -> tuple[str, bytes]:
    """The content type that suits a caller, and the samples as its text."""
    from prometheus_client.exposition import choose_encoder

    encode, kind = choose_encoder(accept)
    return kind, encode(_Families(samples))


class _Families:
    """Samples as prometheus_client's registry, as far as its encoders look."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Any]:
        """All families, each whole."""
        return iter(families(self._samples))


def families(samples: Iterable[Sample]) -> list[Any]:
    """Samples as families, one for each metric; of two with the same labels the last one counts."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds: dict[MetricKind, Any] = {
        MetricKind.COUNTER: CounterMetricFamily,
        MetricKind.GAUGE: GaugeMetricFamily,
    }
    values: dict[str, dict[tuple[str, ...], float]] = {}
    metrics = {}
    for metric, labels, value in samples:
        metrics[metric.name] = metric
        values.setdefault(metric.name, {})[labels] = value
    found = []
    for name, metric in metrics.items():
        family = kinds[metric.kind](name, metric.help, labels=metric.labels)
        for labels, value in values[name].items():
            family.add_metric(labels, value)
        found.append(family)
    return found
