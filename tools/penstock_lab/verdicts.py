# SPDX-License-Identifier: Apache-2.0
"""The lessons of the runs, sentence by sentence: the expectation, the figures, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock_lab.options import LabOptions
from penstock_lab.runs import RunFigures

KEPT, LOST = 0.9, 0.2
STEADIER = 3.0

Runs = Mapping[tuple[str, str], RunFigures]
"""By scenario and scheme."""


@dataclass(frozen=True, slots=True)
class LabVerdict:
    """One expectation, and whether the runs meet it. `why` is said where they do not."""

    text: str
    figures: str
    holds: bool
    why: str = ""


def verdicts(runs: Runs, options: LabOptions) -> list[LabVerdict]:
    """Those of the scenarios and schemes that were run."""
    found: list[LabVerdict] = []
    if ("A", "credit") in runs:
        share = runs["A", "credit"].share
        text = "A: under credit the healthy consumer keeps at least 90 % of its lone rate"
        found.append(LabVerdict(text, f"{share:.0%}", share >= KEPT, _BUSY))
    if ("A", "tcp") in runs:
        share = runs["A", "tcp"].share
        text = "A: under tcp it keeps at most 20 %"
        found.append(
            LabVerdict(text, f"{share:.0%}", share <= LOST, "the sockets took in all that was sent: run longer")
        )
    b = {scheme: runs["B", scheme] for scheme in options.schemes if ("B", scheme) in runs}
    if "credit" in b and "throttle" in b:
        found.append(_steadier(b["credit"].variation, b["throttle"].variation))
    if "credit" in b and "tcp" in b:
        found.append(_checkpoints(b["credit"].checkpoint, b["tcp"].checkpoint))
    if len(b) == len(("credit", "tcp", "throttle")):
        found.append(_noticed(b, options))
        found.append(_starved(b))
    return found


_BUSY = "the machine was too busy for this rate: choose a lower --rate"


def _steadier(credit: float, throttle: float) -> LabVerdict:
    text = "B: the source's rate per 100 ms varies at least 3 times as much under throttle as under credit"
    ratio = throttle / credit if credit else float("inf")
    figures = f"{throttle:.2f} against {credit:.2f}: {ratio:.1f} times"
    return LabVerdict(
        text, figures, ratio >= STEADIER, "the queue is short, or the slow consumer too slow for 100 ms"
    )


def _checkpoints(credit: float | None, tcp: float | None) -> LabVerdict:
    text = "B: an aligned checkpoint takes longer under tcp than under credit"
    holds = credit is not None and (tcp is None or tcp > credit)
    figures = f"{_seconds(tcp)} against {_seconds(credit)}"
    return LabVerdict(text, figures, holds, "the socket buffers are small beside the pools: less waits in them")


def _noticed(b: Mapping[str, RunFigures], options: LabOptions) -> LabVerdict:
    text = "B: the source notices a slow consumer last under throttle"
    times = {scheme: run.source_noticed for scheme, run in b.items()}
    figures = ", ".join(f"{scheme} {_seconds(seconds)}" for scheme, seconds in times.items())
    known = {scheme: float("inf") if seconds is None else seconds for scheme, seconds in times.items()}
    why = (
        f"a flag goes up when a gate holds {round(0.9 * options.queue)} buffers; under tcp the source has room until"
        f" the sockets ({2 * options.socket_buffer >> 10} KiB) and the pools are full, which is more here"
    )
    return LabVerdict(text, figures, known["throttle"] >= max(known.values()), why)


def _starved(b: Mapping[str, RunFigures]) -> LabVerdict:
    text = "B: the healthy consumer starves longest under throttle"
    figures = ", ".join(f"{scheme} {run.starved:.1f} of {run.measured:.1f} s" for scheme, run in b.items())
    worst = max(run.starved for run in b.values())
    why = "the window of a large socket opens late and at once, so tcp starves it as long as a flag does"
    return LabVerdict(text, figures, b["throttle"].starved >= worst, why)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"
