# SPDX-License-Identifier: Apache-2.0
"""The metrics of the service `local`: what its writers and gates count in the group of their task."""

from __future__ import annotations

from penstock.shuffle import Metric, MetricKind


def _counter(name: str, text: str, figure: str, peer: str = "") -> Metric:
    return Metric(name, MetricKind.COUNTER, text, figure=figure, peer=peer)


METRICS = (
    _counter("penstock_local_in_bytes_total", "Bytes that its gates have read, as they travel.", "bytes_in"),
    _counter(
        "penstock_local_in_disk_bytes_total", "Of these bytes those that they have read from files.", "disk_bytes_in"
    ),
    _counter("penstock_local_in_idle_seconds_total", "Time that its gates have waited.", "idle_seconds"),
    _counter("penstock_local_out_bytes_total", "Bytes that its writers have written, as they travel.", "bytes_out"),
    _counter(
        "penstock_local_out_stored_bytes_total", "Bytes that its writers have written to files.", "bytes_stored"
    ),
    _counter(
        "penstock_local_out_buffers_total",
        "Slices of buffers that its writers have shipped.",
        "buffers_out",
        "numBuffersOut",
    ),
    _counter("penstock_local_out_records_total", "Rows that its writers have taken.", "rows_out"),
    _counter(
        "penstock_local_out_back_pressured_seconds_total",
        "Time that its writers have waited.",
        "back_pressured_seconds",
    ),
    _counter("penstock_local_out_spanning_records_total", "Rows that were larger than a segment.", "rows_spanning"),
    _counter(
        "penstock_local_out_unused_bytes_total", "Bytes of shipped segments that were left free.", "bytes_unused"
    ),
)
