# SPDX-License-Identifier: Apache-2.0
"""Samples at a collector: what OpenTelemetry's own exporter sends is read back with OpenTelemetry's own messages."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from penstock.observe import catalogue
from penstock.observe.otlp import OtlpSender
from penstock.observe.samples import Sample
from penstock.testing import DEADLINE

messages = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")

SAMPLES = [
    Sample(catalogue.TASKS[0], ("j1", "0", "1"), 7.0),
    Sample(catalogue.TASKS[0], ("j1", "0", "2"), 8.0),
    Sample(catalogue.JOBS[0], ("j1",), 2.5),
]


class Collector(HTTPServer):
    """Keeps what is posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[Any] = []

    @property
    def url(self) -> str:
        """The address for exporters."""
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        is_packed = self.headers.get("Content-Encoding") == "gzip"
        data = gzip.decompress(data) if is_packed else data
        self.server.got.append(messages.ExportMetricsServiceRequest.FromString(data))
        self.send_response(200)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """One that runs."""
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_collector_gets_counters_and_gauges_with_their_labels(collector: Collector) -> None:
    """Names, units and attributes are those of the table."""
    sender = OtlpSender(collector.url, "app-1")
    sender.send(SAMPLES)
    sender.close()
    sender.close()
    ((resource,),) = [list(each.resource_metrics) for each in collector.got]
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes == {"service.name": "penstock", "service.instance.id": "app-1"}
    counter, gauge = resource.scope_metrics[0].metrics
    assert (counter.name, counter.sum.is_monotonic, gauge.name, gauge.unit) == (
        "penstock_task_in_records_total",
        True,
        "penstock_job_seconds",
        "s",
    )
    labels = [{each.key: each.value.string_value for each in point.attributes} for point in counter.sum.data_points]
    assert labels == [{"job": "j1", "stage": "0", "subtask": number} for number in ("1", "2")]
    assert [point.as_double for point in counter.sum.data_points] == [7.0, 8.0]
    assert gauge.gauge.data_points[0].as_double == 2.5


def test_sending_comes_again(collector: Collector) -> None:
    """Every so often, with the samples of the moment."""
    sent_often(collector.url)
    assert len(collector.got) >= 2


def test_a_collector_that_is_gone_stops_nobody() -> None:
    """The next samples are taken as ever; the exporter says in the log what is wrong."""
    with Collector() as gone:
        url = gone.url
    sent_often(url)


def sent_often(url: str) -> None:
    """Send until samples were taken for the third time: two sendings are over then."""

    async def run() -> None:
        third, taken = asyncio.Event(), []

        def samples() -> list[Sample]:
            taken.append(1)
            if len(taken) == 3:
                third.set()
            return SAMPLES

        sender = OtlpSender(url, "app-1")
        task = asyncio.ensure_future(sender.send_every(0.01, samples))
        await third.wait()
        assert not task.done()
        task.cancel()
        sender.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE))
