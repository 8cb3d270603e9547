# SPDX-License-Identifier: Apache-2.0
"""Plots for the report, where matplotlib is installed: it comes with the extra `lab`."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from penstock.errors import PenstockError, how_to_install
from penstock_lab.figures import BIN
from penstock_lab.runs import RunFigures


class NoPlotsError(PenstockError):
    """matplotlib is not there."""


def series_plot(runs: Sequence[RunFigures]) -> str:
    """The rates of source and healthy consumer over time, a row for each run, as a PNG in base64."""
    figure = _figure(len(runs))
    for number, run in enumerate(runs):
        axes = figure.add_subplot(len(runs), 1, number + 1)
        for series, label in ((run.source_series, "source"), (run.healthy_series, "healthy consumer")):
            moments = [run.began + place * BIN for place in range(len(series))]
            axes.step(moments, [each / BIN for each in series], where="post", label=label, linewidth=1)
        axes.axvline(0, color="#b00020", linewidth=1, linestyle="--")
        axes.set_title(run.scheme, loc="left", fontsize=10)
        axes.set_ylabel("batches/s")
        axes.set_ylim(bottom=0)
        if not number:
            axes.legend(loc="upper right", fontsize=8)
    figure.axes[-1].set_xlabel("seconds since the consumer stopped, or became slow")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()


def _figure(rows: int) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NoPlotsError(
            f"There are no plots: matplotlib is not installed. Install it with: {how_to_install('lab')}"
        ) from None
    return Figure(figsize=(10, 2.2 * rows + 0.6), layout="constrained")
