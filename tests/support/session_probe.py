# SPDX-License-Identifier: Apache-2.0
"""Looks at what a running application holds, from the driver: jobs, slots, tasks, partitions, memory, files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock.attachment.attachment import Attachment, attach
from penstock.link.calls import GetStatistics
from penstock.settings import Settings
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE, wait_until
from underway import listed

_OF_RESULTS = ("files", "partitions")


@contextmanager
def conf(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """With these settings of the session, and afterwards with those from before."""
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


class SessionProbe:
    """One application under test. Its environment must be the one of this host."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._settings: Settings = SparkRuntime.of(spark).settings()

    def environment(self) -> Attachment:
        """A new attachment to this host's environment, which is started where there is none."""
        application = SparkRuntime.of(self._spark)._application
        return attach(application.launch(self._settings))

    def environment_pid(self) -> int:
        """The process id of this host's environment."""
        attachment = self.environment()
        attachment.close()
        return int(attachment.environment.rsplit("-", 2)[1])

    def statistics(self) -> dict[str, float]:
        """The environment's own figures, less this probe."""
        attachment = self.environment()
        try:
            figures = attachment.ask(GetStatistics(), DEADLINE).figures
        finally:
            attachment.close()
        return {**figures, "tasks": figures["tasks"] - 1}

    def jobs(self) -> list[str]:
        """The jobs that are not over."""
        return list(self._core().jobs)

    def slots_in_use(self) -> int:
        """The slots of admitted jobs."""
        return int(self._core().slots_in_use)

    def settle(self) -> None:
        """Wait until the results that are kept are stored, unless a job runs."""
        wait_until(lambda: self.jobs() or not self.statistics()["hybrid_segments"], "results to be stored")

    def collect(self) -> None:
        """Let go of the results that no object of Spark's refers to."""
        results = SparkRuntime.of(self._spark)._application.results
        held = [-1]

        def same() -> bool:
            results.collect()
            self._spark._jvm.java.lang.System.runFinalization()
            held.append(len(results))
            return held[-1] == held[-2]

        wait_until(same, "no more results to go")

    def results(self) -> int:
        """The number of lazy results that the JobMaster knows."""
        return len(SparkRuntime.of(self._spark)._application.master(self._settings)._results._results)

    def files(self) -> list[str]:
        """The folders of the partitions of this host, in whatever directories they lie, when all are stored."""
        self.settle()
        application = SparkRuntime.of(self._spark)._application
        place = application.launch(self._settings).place()
        folders = [place.results, *place._folders_elsewhere()]
        return sorted(path.name for folder in folders if folder.exists() for path in listed(folder))

    def holdings(self) -> dict[str, object]:
        """All that a job must give back, when results are stored: compare before and after."""
        self.settle()
        figures = self.statistics()
        return {
            "jobs": self.jobs(),
            "slots": self.slots_in_use(),
            "tasks": figures["tasks"],
            "segments": figures["segments_in_use"],
            "guaranteed": figures["segments_guaranteed"],
            "partitions": figures["partitions"],
            "files": self.files(),
        }

    def wait_as_before(self, before: dict[str, object]) -> None:
        """Wait until the application holds what it held before, or less of results that nobody can read any more.

        Only where it holds more results does the JVM look for those, which takes a second of the processor.
        """
        seen: dict[str, object] = {}

        def but_results() -> bool:
            seen.update(self.holdings())
            return all(seen[name] == before[name] for name in seen if name not in _OF_RESULTS)

        def same() -> bool:
            return but_results() and all(_is_no_more(seen[name], before[name]) for name in _OF_RESULTS)

        def collected() -> bool:
            self.collect()
            return same()

        try:
            wait_until(but_results, "the application holds what it held before")
            if not same():
                # Again and again, because threads of Spark may hold on to a plan for some seconds.
                wait_until(collected, "the application holds what it held before")
        except AssertionError as error:
            raise AssertionError(f"before: {before}\nnow:    {seen}") from error

    def _core(self) -> Any:
        master = SparkRuntime.of(self._spark)._application.master(self._settings)
        return master._driver._core


def _is_no_more(now: Any, before: Any) -> bool:
    """Of results that were there: the same files or fewer, or no larger number of partitions."""
    return set(now) <= set(before) if isinstance(now, list) else bool(now <= before)


def marks(folder: Path) -> list[int]:
    """The process ids that `mark` left."""
    return sorted(int(path.name) for path in listed(folder)) if folder.exists() else []


def mark(folder: str) -> None:
    """Leave this process's id as an empty file."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, str(os.getpid())).touch()


def queries_ended(spark: Any) -> Iterator[None]:
    """The body of a fixture: ends the queries that a test leaves, and waits until slots and partitions are back."""
    before = SessionProbe(spark).holdings()
    yield
    for query in penstock.streams(spark).active:
        query.stop(0.1)
    SessionProbe(spark).wait_as_before(before)
