# SPDX-License-Identifier: Apache-2.0
"""The report of a laboratory: one JSON file with every figure, one HTML page that can be sent on.

The page needs nothing but itself. Its plots are drawn by matplotlib (the extra `lab`); without that it says so, and
has the tables alone.
"""

from __future__ import annotations

import html
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from penstock_lab.options import LabOptions
from penstock_lab.plots import NoPlotsError, series_plot
from penstock_lab.runs import RunFigures
from penstock_lab.verdicts import Runs, verdicts

SCENARIOS = {
    "A": "Two sources, each with a consumer, share one connection; one consumer stops.",
    "B": "One source feeds two consumers in turns; one of them becomes slow.",
}
COLUMNS = (
    "flow control",
    "lone rate (batches/s)",
    "healthy rate (batches/s)",
    "share of lone rate",
    "source notices after (s)",
    "buffers in flight: stuck or slow",
    "healthy",
    "healthy starved (s)",
    "of (s)",
    "variation of the source per 100 ms",
    "aligned checkpoint (s)",
)


def row(run: RunFigures) -> tuple[str, ...]:
    """The figures of a run as texts, in the order of COLUMNS."""
    none = "-"
    return (
        run.scheme,
        f"{run.lone_rate:.0f}",
        f"{run.healthy_rate:.0f}",
        f"{run.share:.0%}",
        none if run.source_noticed is None else f"{run.source_noticed:.2f}",
        f"{run.buffers_in_flight:.0f}",
        f"{run.healthy_in_flight:.0f}",
        f"{run.starved:.1f}",
        f"{run.measured:.1f}",
        f"{run.variation:.2f}",
        none if run.checkpoint is None else f"{run.checkpoint:.2f}",
    )


def as_json(runs: Runs, options: LabOptions) -> str:
    """Every figure, with the options and the machine."""
    found = [
        {**asdict(run), "share": run.share, "checkpoint": run.checkpoint, "checkpoints": list(run.checkpoints)}
        for run in runs.values()
    ]
    whole = {
        "options": asdict(options),
        "machine": {"system": platform.platform(), "python": platform.python_version()},
        "runs": found,
        "verdicts": [asdict(verdict) for verdict in verdicts(runs, options)],
    }
    return json.dumps(whole, indent=1) + "\n"


def as_html(runs: Runs, options: LabOptions) -> str:
    """The page."""
    parts = [_HEAD, "<h1>Flow control: credit, tcp, throttle</h1>", _introduction(options)]
    parts.append("<h2>What the runs show</h2>" + _verdicts(runs, options))
    for scenario in options.scenarios:
        of_it = [run for run in runs.values() if run.scenario == scenario]
        if of_it:
            parts.append(f"<h2>Scenario {scenario}</h2><p>{html.escape(SCENARIOS[scenario])}</p>")
            parts += [_table(of_it), _plots(of_it)]
    return "\n".join([*parts, "</body></html>\n"])


def write(folder: Path, runs: Runs, options: LabOptions) -> tuple[Path, Path]:
    """Write both files into a folder, which is made; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    page, figures = folder / "backpressure.html", folder / "backpressure.json"
    page.write_text(as_html(runs, options))
    figures.write_text(as_json(runs, options))
    return page, figures


_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Penstock: flow control</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { border: 1px solid #ccc; padding: .3em .6em; text-align: right }
td:first-child, th:first-child { text-align: left } .no { color: #b00020 } .yes { color: #1b7f3b } img { max-width: 100% }
</style></head><body>"""  # noqa: E501 - a style sheet


def _introduction(options: LabOptions) -> str:
    text = (
        f"Batches of {options.segment >> 10} KiB over TCP between two environment processes, socket buffers of"
        f" {options.socket_buffer >> 10} KiB, {options.rate:g} batches per second for each consumer,"
        f" {options.exclusive} exclusive and {options.floating} floating buffers, under throttle a queue of"
        f" {options.queue}; the slow consumer takes a {options.slowdown:g}th. Each run measured"
        f" {options.seconds:g} seconds."
    )
    return f"<p>{html.escape(text)}</p>"


def _verdicts(runs: Runs, options: LabOptions) -> str:
    found = []
    for verdict in verdicts(runs, options):
        mark = '<span class="yes">yes</span>' if verdict.holds else '<span class="no">no</span>'
        why = "" if verdict.holds else f" Perhaps because {html.escape(verdict.why)}."
        found.append(f"<li>{html.escape(verdict.text)}: {html.escape(verdict.figures)}: {mark}.{why}</li>")
    return f"<ul>{''.join(found)}</ul>"


def _table(runs: Sequence[RunFigures]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row(run)) + "</tr>" for run in runs)
    return f"<table><tr>{head}</tr>{body}</table>"


def _plots(runs: Sequence[RunFigures]) -> str:
    try:
        return f'<img alt="rates over time" src="data:image/png;base64,{series_plot(runs)}">'
    except NoPlotsError as error:
        return f"<p>{html.escape(str(error))}</p>"
