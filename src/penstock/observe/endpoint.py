# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint of a long-lived process, in one way for all: the driver's, the environments'.

It runs on the process's own event loop, where the figures are, and needs no thread of its own to listen; a scrape's
text is made beside the loop. It listens at the first free port of sixteen, or at any where the port is 0. Limits:
nobody proves anything here, so whoever reaches the address can read names of jobs and stages, and figures; the
address is the loopback unless a setting says otherwise. A caller has ten seconds, and sixteen are served at once. Of
HTTP it knows `GET /metrics`, and no connection serves twice. The library is imported when an endpoint opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import SettingError
from penstock.observe.samples import Sample
from penstock.settings import ObserveSettings
from penstock.shuffle.metrics import MetricKind

_LOG = logging.getLogger(__name__)

PORTS = 16
"""Tried from the port that is set: the processes of a machine share it."""
CALLERS = 16
_SECONDS = 10.0
_HEAD_BYTES = 16 << 10

Samples = Callable[[], Iterable[Sample]]
"""Gives the samples of this moment; called on the loop."""


class MetricsEndpoint:
    """One process's endpoint; without the setting it stays closed, and `address` empty."""

    def __init__(self, settings: ObserveSettings, samples: Samples) -> None:
        self.address = ""
        """The place, `host:port`, where `/metrics` is."""
        self._settings = settings
        self._samples = samples
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen, where the setting says so. Raises SettingError where no port can be had."""
        if not self._settings.metrics:
            return
        import prometheus_client  # noqa: F401 - a scrape should not be the first to import it

        self._server = await self._listen()
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _LOG.info("metrics are at http://%s/metrics", self.address)

    async def close(self) -> None:
        """Serve no more, and hang up; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for caller in self._callers:
                caller.cancel()
            await asyncio.gather(*self._callers, return_exceptions=True)
            await server.wait_closed()

    async def _listen(self) -> asyncio.Server:
        host, first = self._settings.metrics_host, self._settings.metrics_port
        failure: OSError | None = None
        for port in range(first, min(first + PORTS, 1 << 16)) if first else (0,):
            try:
                return await asyncio.start_server(self._called, host, port, limit=_HEAD_BYTES)
            except OSError as error:
                failure = error
        raise SettingError(
            f"no metrics can be served at {host}:{first} or the ports after it: {failure}."
            " See spark.penstock.observe.metricsHost and .metricsPort"
        )

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._callers) >= CALLERS:
            writer.close()
            return
        self._callers.add(task)
        try:
            async with asyncio.timeout(_SECONDS):
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _LOG.debug("a caller for metrics was not served: %r", error)
        finally:
            self._callers.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        if method != "GET" or rest.partition(" ")[0].partition("?")[0] != "/metrics":
            return _response("404 Not Found", "text/plain; charset=utf-8", b"metrics are at /metrics\n")
        pairs = (line.partition(":") for line in lines[1:])
        accept = next((value.strip() for name, _, value in pairs if name.strip().lower() == "accept"), "")
        samples = list(self._samples())
        kind, text = await asyncio.get_running_loop().run_in_executor(None, rendered, samples, accept)
        return _response("200 OK", kind, text)


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


def _response(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + body
