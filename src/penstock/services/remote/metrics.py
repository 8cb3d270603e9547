# SPDX-License-Identifier: Apache-2.0
"""The metrics of the service `remote`: what its writers and gates count in the group of their task."""

from __future__ import annotations

from penstock.shuffle import Metric, MetricKind


def _counter(name: str, text: str, figure: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, text, figure=figure)


METRICS = (
    _counter("penstock_remote_in_bytes_total", "Bytes that its gates have fetched from workers.", "bytes_in"),
    _counter("penstock_remote_out_bytes_total", "Bytes of payload that its writers have written.", "bytes_out"),
    _counter("penstock_remote_out_pushed_bytes_total", "Bytes that its writers have pushed.", "bytes_pushed"),
    _counter("penstock_remote_out_records_total", "Rows that its writers have taken.", "rows_out"),
)
