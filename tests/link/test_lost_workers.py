# SPDX-License-Identifier: Apache-2.0
"""A worker that goes at a bad moment: the JobMaster hears of the worker, not only of what it worked on."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from pathlib import Path
from typing import Any

import pytest

from environment_thread import environment
from penstock.environment.control import NoMaster
from penstock.errors import StaleError
from penstock.link.master import Registered, RegisterTask, Report, TaskEnd, TaskFinished, TaskLost
from penstock.link.wire import Done
from penstock.shuffle import AttemptId
from penstock.testing import DEADLINE

WORKER, WORK = AttemptId("job", -1, 3, 7), AttemptId("job", 1, 0, 0)


@pytest.mark.parametrize("is_refused", [False, True], ids=["heard", "refused"])
def test_a_worker_that_goes_while_its_report_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """The JobMaster may have taken the report before the loss of the attempt: the worker itself is lost too."""
    asked: queue.SimpleQueue[TaskFinished] = queue.SimpleQueue()
    lost: queue.SimpleQueue[Report] = queue.SimpleQueue()
    answered = asyncio.Event()

    async def ask(_: NoMaster, request: Any) -> Any:
        if isinstance(request, RegisterTask):
            return Registered((WORK.to_wire(),))
        asked.put(request)
        await answered.wait()
        if is_refused:
            raise StaleError("it was replaced")
        return Done()

    monkeypatch.setattr(NoMaster, "ask", ask)
    monkeypatch.setattr(NoMaster, "report", lambda _, report: lost.put(report))
    with environment(tmp_path) as here:
        with contextlib.closing(here.attach()) as worker:
            assert worker.ask(RegisterTask(WORKER), DEADLINE).attempt == WORK
            worker.tell(TaskFinished(WORK, TaskEnd.FINISHED), lambda _: None)
            asked.get(timeout=DEADLINE)
        first = lost.get(timeout=DEADLINE)
        here.run(answered.set)
        second = lost.get(timeout=DEADLINE)
    found = [each.attempt for each in (first, second) if isinstance(each, TaskLost)]
    assert found == [WORK, WORKER]
