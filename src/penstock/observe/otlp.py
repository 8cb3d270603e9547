# SPDX-License-Identifier: Apache-2.0
"""Samples sent to an OpenTelemetry collector, by OpenTelemetry's own exporter (the extra `otel`).

The driver sends, for it has everything. A collector that is slow or gone costs the samples of that moment: the
exporter says so in the log, tries for some seconds, and the next ones are sent later. Nothing global is set: an
application that uses OpenTelemetry itself is not touched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import SettingError, how_to_install
from penstock.observe.samples import Sample
from penstock.shuffle.metrics import MetricKind

_LOG = logging.getLogger(__name__)

_SECONDS = 5.0
"""As long is a sending tried."""


class OtlpSender:
    """Sends to the collector at `url`, such as `http://host:4318/v1/metrics`.

    Raises SettingError where the extra is not installed.
    """

    def __init__(self, url: str, application: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as error:
            raise SettingError(
                f"spark.penstock.observe.otlpUrl={url} needs OpenTelemetry's exporter: {how_to_install('otel')}"
            ) from error
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=_SECONDS)
        self._application = application
        self._began = time.time_ns()

    def send(self, samples: Iterable[Sample]) -> None:
        """Send these; blocks for some seconds at most, and raises nothing for a collector that is gone."""
        self._exporter.export(metrics_data(samples, self._application, self._began, time.time_ns()))

    async def send_every(self, seconds: float, samples: Callable[[], Iterable[Sample]]) -> None:
        """Send again and again, beside the loop."""
        while True:
            await asyncio.sleep(seconds)
            now = list(samples())
            try:
                sent = asyncio.get_running_loop().run_in_executor(None, self.send, now)
            except RuntimeError:  # the interpreter ends, and starts no thread any more
                continue
            try:
                await sent
            except Exception:  # noqa: BLE001 - whatever the exporter raises, the next samples are sent
                _LOG.exception("the metrics of this moment could not be sent")

    def close(self) -> None:
        """Send no more; idempotent. One that is under way is not waited for."""
        self._exporter.shutdown(timeout_millis=0)


def metrics_data(samples: Iterable[Sample], application: str, began: int, now: int) -> Any:
    """Samples as OpenTelemetry's data; counters count since `began`. Moments are in nanoseconds."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    points: dict[str, list[Any]] = {}
    metrics = {}
    for metric, labels, value in samples:
        metrics[metric.name] = metric
        attributes = dict(zip(metric.labels, labels, strict=True))
        points.setdefault(metric.name, []).append(export.NumberDataPoint(attributes, began, now, value))
    found = []
    for name, metric in metrics.items():
        data: Any = export.Gauge(points[name])
        if metric.kind is MetricKind.COUNTER:
            data = export.Sum(points[name], export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        found.append(export.Metric(name, metric.help, _unit(name), data))
    scope = export.ScopeMetrics(InstrumentationScope("penstock"), found, "")
    resource = Resource({"service.name": "penstock", "service.instance.id": application})
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])


def _unit(name: str) -> str:
    """The unit in OpenTelemetry's letters, where the name has one."""
    word = name.removesuffix("_total").rpartition("_")[2]
    return {"seconds": "s", "bytes": "By", "ratio": "1"}.get(word, "")
