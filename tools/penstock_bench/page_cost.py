# SPDX-License-Identifier: Apache-2.0
"""The cost of a web page that three people look at, to the streaming row and to its driver.

One query, that of the streaming row, runs on. In turns the page is closed, and open with three visitors: real
browsers, or readers of its stream that drop what they read. A colleague's browser takes no processor of the query's
host, so browsers get here little more than the query leaves (nice 19); in a form of their own they are as good as the
query's tasks, and the rate lacks their work too. Rows by CPU second of the session count no work of the visitors, and
lack what driver and tasks do for the page, whatever else the machine does: that is what the page costs a query. The
driver's CPU seconds are those of its process, which is the bench's, while the bench itself sleeps. Visitors that are
shown nothing cost nothing: a turn counts where each has seen the page anew while it was measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock_bench import catalogue
from penstock_bench.catalogue import PageForm
from penstock_bench.measure import SHARE, Outcome, Say, WrongAnswerError
from penstock_bench.noted_rows import NotedRows, NotingSink
from penstock_bench.page_readers import VisitorProcess, visitors
from penstock_bench.processor import interval_of, processor_seconds
from penstock_bench.recovery import until

VISITORS = 3
_KEYS = 100_000
_LEAST_TURNS = 3
_SETTLE_SECONDS = 2.0
_TURN_SECONDS = 4.0
_WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """Some seconds of the query: when, and the CPU seconds of the driver, of the whole session, of the visitors."""

    began: float
    ended: float
    driver: float
    session: float
    visitors: float
    is_seen: bool = True


def page_outcomes(spark: Any, scale: float, say: Say) -> list[Outcome]:
    """Of browsers and of readers: the shares of the rate and of the session's CPU seconds, and their upper ends."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made:
        notes = Path(made) / "rows"
        notes.mkdir()
        query = _started(spark, Path(made) / "checkpoints", notes)
        try:
            until(query, lambda: (query.lastProgress or {}).get("numInputRows", 0) > 0, _WAIT_SECONDS)
            found = {
                form: _turns(spark, form, max(_LEAST_TURNS, round(form.turns * scale)))
                for form in catalogue.PAGE_ROWS
            }
        finally:
            query.stop(_WAIT_SECONDS)
        rows = NotedRows(notes)
        for form, pairs in found.items():
            rates = [100 * (1 - rows.rate(on.began, on.ended) / rows.rate(off.began, off.ended)) for on, off in pairs]
            by_work = [100 * (1 - _by_work(rows, on) / _by_work(rows, off)) for on, off in pairs]
            usual = float(np.median([off.session for _, off in pairs]))
            driver = [100 * (on.driver - off.driver) / usual for on, off in pairs]
            theirs = [100 * (on.visitors - off.visitors) / usual for on, off in pairs]
            for labels, shares in zip(catalogue.PAGE_ROWS[form], (rates, by_work, driver, theirs), strict=True):
                low, high = interval_of(shares)
                say(f"{labels[0].label}: {np.median(shares):.2f} %, 95 % interval {low:.2f} to {high:.2f} %")
                outcomes.append(Outcome(labels[0], penstock=tuple(shares), unit=SHARE))
                outcomes.append(Outcome(labels[1], penstock=(high,), unit=SHARE))
    return outcomes


def _by_work(rows: NotedRows, turn: _Turn) -> float:
    """Rows in a second of the session's own work: what other programs take of the machine changes nothing."""
    return rows.rate(turn.began, turn.ended) * (turn.ended - turn.began) / turn.session


def _started(spark: Any, folder: Path, notes: Path) -> Any:
    """The query of the streaming row, with a checkpoint each second."""
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=2).load()
    counts = numbers.selectExpr(f"value % {_KEYS} AS k").keyBy("k", numPartitions=2).count()
    writer = counts.writeStream.format(NotingSink(str(notes))).option("checkpointLocation", str(folder))
    return writer.option("checkpointInterval", "1s").start()


def _turns(spark: Any, form: PageForm, turns: int) -> list[tuple[_Turn, _Turn]]:
    """Pairs of an open page and a closed one; the order changes from pair to pair."""
    pairs = []
    with visitors(form.kind, VISITORS, is_idle=form.is_idle) as visiting:
        for number in range(turns + 1):
            sides = [True, False] if number % 2 else [False, True]
            found = {is_open: _turn(spark, visiting, form.every, is_open) for is_open in sides}
            pairs.append((found[True], found[False]))
    seen = [pair for pair in pairs[1:] if pair[0].is_seen]  # the first pair starts the browsers
    if len(seen) < _LEAST_TURNS:
        raise WrongAnswerError(
            f"in {len(seen)} of {turns} turns all {form.kind} saw the page: the machine is too busy"
        )
    return seen


def _turn(spark: Any, visiting: VisitorProcess, every: int, is_open: bool) -> _Turn:
    application = spark.sparkContext.applicationId
    page = penstock.webPage(spark) if is_open else None
    try:
        if page is not None:
            visiting.come(f"{page.url}&every={every}")
        time.sleep(_SETTLE_SECONDS)
        before = visiting.seen() if is_open else []
        began, taken = time.monotonic(), _seconds(application, visiting.pid)
        time.sleep(_TURN_SECONDS)
        ended, later = time.monotonic(), _seconds(application, visiting.pid)
        is_seen = not is_open or _all_saw(before, visiting.seen())
    finally:
        if page is not None:
            visiting.leave()
            page.close()
    driver, session, theirs = (new - old for old, new in zip(taken, later, strict=True))
    return _Turn(began, ended, driver, session, theirs, is_seen)


def _all_saw(before: Sequence[int], after: Sequence[int]) -> bool:
    return all(new > old for old, new in zip(before, after, strict=True))


def _seconds(application: str, visitor: int) -> tuple[float, float, float]:
    """CPU seconds of the driver, of the session without the visitors, and of these, until now."""
    session = processor_seconds(application, visitor)
    return time.process_time(), session, processor_seconds(application) - session
