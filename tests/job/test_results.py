# SPDX-License-Identifier: Apache-2.0
"""Lazy results: jobs that run when they are opened, results that are there already, and who hears of a loss."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.graph.job_graph import JobGraph
from penstock.job.launcher import Submission
from penstock.job.results import MadeResult, Partitions, Results
from penstock.shuffle import PartitionId, PartitionKind, Settings, ShuffleDescriptor
from penstock.shuffle.errors import JobError, PartitionExpiredError

SECONDS = 20.0
KEPT = (ShuffleDescriptor(PartitionId("j1-result0", 0, 1), "local", PartitionKind.BLOCKING_PERSISTENT),)


class Rig:
    """Results whose jobs end at once."""

    def __init__(self) -> None:
        self.results = Results(self.run_job)
        self.ran: list[str] = []

    def run_job(self, submission: Submission) -> asyncio.Future[Partitions]:
        """A job without partitions."""
        self.ran.append(submission.job)
        future: asyncio.Future[Partitions] = asyncio.get_running_loop().create_future()
        future.set_result(())
        return future

    def submission(self) -> Submission:
        """The next job."""
        return Submission(f"j{len(self.ran) + 1}", JobGraph("test", (), ()), Settings(), 1)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, in time."""
    asyncio.run(asyncio.wait_for(work, SECONDS))


def test_a_made_result_runs_no_job() -> None:
    """Its partitions are given; when a job that made them is forgotten, the next opening builds again."""

    async def act() -> None:
        rig = Rig()
        built: list[int] = []

        def build() -> MadeResult:
            built.append(1)
            return MadeResult(frozenset({"j7", "j8"}), KEPT)

        rig.results.add("r1", build)
        assert await rig.results.open("r1") == KEPT
        assert await rig.results.open("r1") == KEPT
        assert rig.results.is_opened("j8")
        assert len(built) == 1
        rig.results.forget("j8")
        assert not rig.results.is_opened("j8")
        assert await rig.results.open("r1") == KEPT
        assert len(built) == 2
        assert not rig.ran

    run(act())


def test_a_watcher_hears_once() -> None:
    """Of a loss, not of a release; the lazy results of that job are opened anew."""

    async def act() -> None:
        rig = Rig()
        heard: list[str] = []
        rig.results.watch("j1", lambda: heard.append("j1"))
        rig.results.watch("j2", lambda: heard.append("j2"))
        rig.results.add("r1", rig.submission)
        await rig.results.open("r1")
        assert rig.results.lost("j1")
        assert not rig.results.lost("j1")
        rig.results.forget("j2")
        assert not rig.results.lost("j2")
        await rig.results.open("r1")
        assert heard == ["j1"]
        assert rig.ran == ["j1", "j2"]

    run(act())


def test_builds_do_not_wait_for_each_other() -> None:
    """More builds may wait at the same time than the event loop has threads, for one that begins last."""

    async def act() -> None:
        rig = Rig()
        go = threading.Event()

        def waiting() -> MadeResult:
            assert go.wait(SECONDS)
            return MadeResult(frozenset(), KEPT)

        def last() -> MadeResult:
            go.set()
            return MadeResult(frozenset(), KEPT)

        for number in range(64):
            rig.results.add(f"w{number}", waiting)
        rig.results.add("last", last)
        names = [*(f"w{number}" for number in range(64)), "last"]
        assert await asyncio.gather(*(rig.results.open(name) for name in names)) == [KEPT] * 65

    run(act())


def test_a_failed_build_is_tried_again() -> None:
    """It is raised where the result is opened, and an unknown result has its own answer."""

    async def act() -> None:
        rig = Rig()
        errors = [JobError("boom")]

        def build() -> Submission:
            if errors:
                raise errors.pop()
            return rig.submission()

        rig.results.add("r1", build)
        with pytest.raises(JobError, match="boom"):
            await rig.results.open("r1")
        assert await rig.results.open("r1") == ()
        with pytest.raises(PartitionExpiredError, match="r9"):
            await rig.results.open("r9")

    run(act())


def test_what_is_given_up_while_it_is_looked_up_is_looked_up_again() -> None:
    """A made result whose job is forgotten before it is handed out is not kept: the build is asked once more."""

    async def act() -> None:
        rig = Rig()
        loop = asyncio.get_running_loop()
        given: list[str] = []

        def build() -> MadeResult:
            given.append(f"j{len(given) + 1}")
            if len(given) == 1:
                done = threading.Event()
                loop.call_soon_threadsafe(lambda: (rig.results.forget("j1"), done.set()))
                assert done.wait(SECONDS)
            return MadeResult(frozenset({given[-1]}), KEPT)

        rig.results.add("r1", build)
        assert await rig.results.open("r1") == KEPT
        assert given == ["j1", "j2"]

    run(act())
