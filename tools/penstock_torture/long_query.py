# SPDX-License-Identifier: Apache-2.0
"""A streaming query that is left alone: at full rate, with a checkpoint a second, and a kill of a task a minute.

Three visitors have its web page open all the time: readers that drop what it tells, or browsers with a view of it
each. Every five seconds what it holds is looked at: memory of driver, environment and tasks, open files, threads, the
files at its checkpoint location, and what the page keeps. None of it may grow, and checkpoints must go on to its end.
Told as well, and free to grow, is the memory of the driver's JVM and of the visitors.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock
from penstock.web.record import CHECKPOINTS, ERRORS, PARTS
from penstock.web.series import POINTS
from penstock.web.timeline import SPANS
from penstock_bench.environment import descendants, own_bytes, parents
from penstock_bench.page_readers import visitors
from penstock_bench.workers import worker_pids
from penstock_torture.harm import kill_a_worker
from penstock_torture.session_figures import Figures, describe, growth, look

MASTER = "local[6,1000]"
_KEYS = 100_000
_VISITORS = 3
_VIEWS = ("stages", "charts", "processes")
"""Of browsers, one each: the one that opens first, the one that draws most, and the one that asks most."""
_PAGE_MOST = {
    "page_jobs": 1,
    "page_points": POINTS,
    "page_spans": SPANS,
    "page_checkpoints": CHECKPOINTS,
    "page_parts": PARTS,
    "page_errors": ERRORS,
    "page_told": 1_000,
    "page_document_bytes": 1 << 20,
}
"""The page of one small query keeps no more than this, however long it runs."""
_LOOK_SECONDS = 5.0
_KILL_SECONDS = 60.0
_STOP_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(slots=True)
class LongQuery:
    """One query; `run` does it all."""

    seed: int
    seconds: float
    say: Say
    visited_by: str = "streams"
    figures: list[Figures] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    _page: Any = None
    _visitor: int = 0

    def run(self, spark: Any) -> list[str]:
        """Run it and return the faults; prints the figures of each look."""
        with (
            tempfile.TemporaryDirectory(prefix="penstock-checkpoints-") as location,
            visitors(self.visited_by, _VISITORS) as visiting,
        ):
            self._page, self._visitor = penstock.webPage(spark), visiting.pid
            query = _started(spark, location)
            try:
                visiting.come(f"{self._page.url}&every=1", *_VIEWS)
                before = visiting.seen()
                kills = self._watch(query, spark.sparkContext.applicationId, Path(location))
                after = visiting.seen()
            finally:
                query.stop(_STOP_SECONDS)
            failures = [] if query.exception() is None else [f"the query ended: {query.exception()}"]
            self.say(f"the {self.visited_by} have seen {', '.join(map(str, after))} times what the page tells")
            if any(new <= old for old, new in zip(before, after, strict=True)):
                failures.append("a visitor sees the page no more")
            left = sorted(path.name for path in Path(location).glob("chk-*"))
            if len(left) > 2:
                failures.append(f"checkpoints are left: {', '.join(left)}")
        failures += growth(self.figures) + self._too_much()
        third = len(self.checkpoints) // 3
        if third and self.checkpoints[-1] <= self.checkpoints[-third]:
            failures.append("no checkpoint was completed in the last third")
        last = query.lastProgress or {}
        self.say(
            f"query, seed {self.seed}: {kills} kills, {last.get('restarts', 0)} restarts,"
            f" {last.get('checkpoints', {}).get('completed', 0)} checkpoints; {', '.join(failures) or 'nothing grew'}"
        )
        return failures

    def _too_much(self) -> list[str]:
        """Tell the first and the last sizes of what the page keeps; those that were beyond their limits."""
        first, last = ({name: told[name] for name in _PAGE_MOST} for told in (self.figures[0], self.figures[-1]))
        self.say(f"the page kept {describe(first)}; at the end {describe(last)}")
        most = {name: max(told[name] for told in self.figures) for name in _PAGE_MOST}
        return [
            f"{name} was {most[name]:,}, above {_PAGE_MOST[name]:,}" for name in most if most[name] > _PAGE_MOST[name]
        ]

    def _watch(self, query: Any, application: str, location: Path) -> int:
        chance = random.Random(self.seed)  # noqa: S311 - chance, not a secret
        began, kills = time.monotonic(), 0
        while query.isActive and (passed := time.monotonic() - began) < self.seconds:
            if passed >= _KILL_SECONDS * (kills + 1):
                kills += kill_a_worker(chance)
            time.sleep(_LOOK_SECONDS)
            self._look(query, application, location, passed)
        return kills

    def _look(self, query: Any, application: str, location: Path, passed: float) -> None:
        tasks = max((own_bytes(pid) for pid in worker_pids()), default=0)
        files = sum(len(names) for _, _, names in os.walk(location))
        kept = {f"page_{name}": size for name, size in self._page.statistics().items()}
        seen = {"task_bytes": tasks, "checkpoint_files": files} | _beside(self._visitor)
        self.figures.append(look(application) | seen | kept)
        report = query.lastProgress
        if report is None:
            return
        self.checkpoints.append(report["checkpoints"]["completed"])
        self.say(
            f"{passed:6.0f} s: {describe(self.figures[-1])};"
            f" {report['processedRowsPerSecond'] / 1e6:.2f} M rows/s, {self.checkpoints[-1]} checkpoints,"
            f" {report['restarts']} restarts"
        )


def _beside(visitor: int) -> dict[str, int]:
    """The memory of the driver's JVM, and of the page's visitors."""
    above = parents()
    visiting = descendants(visitor, above)
    jvms = (pid for pid in descendants(os.getpid(), above) - visiting if _is_java(pid))
    return {"jvm_bytes": sum(map(own_bytes, jvms)), "visitor_bytes": sum(map(own_bytes, visiting))}


def _is_java(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "java\n"
    return False


def _started(spark: Any, location: str) -> Any:
    numbers = penstock.readStream(spark).format("rate").options(rowsPerSecond=0, numPartitions=2).load()
    counts = numbers.selectExpr(f"value % {_KEYS} AS k").keyBy("k", numPartitions=2).count()
    writer = counts.writeStream.format("noop").option("checkpointLocation", location)
    return writer.option("checkpointInterval", "1s").start()
