# SPDX-License-Identifier: Apache-2.0
"""The cost of TLS: CPU seconds of an exchange between two executors, with it and in plain text, in turns.

Each side is a driver of its own with a session of its own, as in `metrics_cost`. All is on loopback: the network
costs nothing, and encryption all that it costs anywhere.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from penstock_bench.catalogue import TLS_EXCHANGE
from penstock_bench.measure import SHARE, Outcome, Say
from penstock_bench.metrics_cost import bench_driver, side_shares
from penstock_bench.processor import interval_of
from penstock_bench.recovery import CLUSTER
from penstock_bench.rows import write_numbers

ROWS = 20_000_000
TURNS = 10


def tls_outcomes(folder: Path, scale: float, repeat: int, say: Say) -> list[Outcome]:
    """The share of the exchange, and the upper end of its interval."""
    data = write_numbers(folder / "numbers", max(1, int(ROWS * scale)))
    with ExitStack() as stack:
        sides = {
            is_on: stack.enter_context(bench_driver(data, 0, {**CLUSTER, "spark.penstock.tls.mode": mode}))
            for is_on, mode in ((True, "always"), (False, "auto"))
        }
        shares = side_shares(sides, "exchange", max(TURNS, repeat))
    low, high = interval_of(shares)
    say(f"{TLS_EXCHANGE[0].label}: {np.median(shares):.1f} %, 95 % interval {low:.1f} to {high:.1f} %")
    figures = zip(TLS_EXCHANGE, (tuple(shares), (high,)), strict=True)
    return [Outcome(row, data.rows, data.bytes, each, unit=SHARE) for row, each in figures]
