# SPDX-License-Identifier: Apache-2.0
"""The page's words about disks, workers and users: which is slow, and nothing where none is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.job.shell.processes import ProcessNow, TaskNow
from penstock.link.figures import UseFigures, UseKind
from penstock.shuffle import AttemptId
from penstock.web.paces import processes_document
from penstock.web.uses import UseLooks

MEGABYTE = 1e6
NOTHING = "No stage runs in several processes, and no worker, disk or user is slow."


def disk(name: str, read: float, write: float, seconds: float) -> UseFigures:
    """A disk that gave and took so many bytes in so many seconds each."""
    told = {"read_bytes": read, "read_seconds": seconds, "write_bytes": write, "write_seconds": seconds}
    return UseFigures(UseKind.DISK, name, told)


def process(name: str, uses: tuple[UseFigures, ...], tasks: tuple[TaskNow, ...] = ()) -> ProcessNow:
    """An environment process that has just been heard."""
    return ProcessNow(name, "host", 1, "", 0.1, {}, (), tasks, uses)


def looked(*moments: tuple[ProcessNow, ...]) -> dict[str, Any]:
    """The page's document at the last of some looks, ten seconds apart."""
    looks = UseLooks()
    found = [looks.look(each, 10.0 * number) for number, each in enumerate(moments)]
    return processes_document(moments[-1], found[-1])


def test_the_disk_that_takes_bytes_at_less_of_a_pace_is_named() -> None:
    """By direction, of one process or of several; those that are much alike are not."""
    fast, slow = disk("/data1", 900 * MEGABYTE, 900 * MEGABYTE, 1.0), disk("/data2", 0, 30 * MEGABYTE, 3.0)
    told = looked((process("e1", (fast, slow)),))
    assert "The disk /data2 of e1 is slow: it takes 10 MB in a second of waiting, the others 900 MB." in told["text"]
    assert "gives" not in told["text"]
    alike = looked((process("e1", (fast,)), process("e2", (fast,))))
    assert alike["text"] == NOTHING


def test_the_only_disk_is_named_while_it_is_waited_for() -> None:
    """In the last seconds: what was before them counts no more."""
    old, busy = disk("/", 0, 100 * MEGABYTE, 100.0), disk("/", 0, 150 * MEGABYTE, 108.0)
    assert (
        "The disk / of e1 is waited for 1.6 s" in looked((process("e1", (old,)),), (process("e1", (busy,)),))["text"]
    )
    still = looked((process("e1", (busy,)),), (process("e1", (busy,)),), (process("e1", (busy,)),))
    assert still["text"] == NOTHING
    assert still["disks"][0][6:] == [None, None, 0.0, 0.0]


def test_the_worker_with_less_of_the_others_pace_is_named() -> None:
    """It has the rows of its task, compared with the other subtasks of the stage, wherever they run."""
    uses = tuple(
        UseFigures(UseKind.WORKER, f"pid {pid}", {"seconds": 10.0, "busy_seconds": 9.0}, AttemptId("j1", 1, pid, 0))
        for pid in range(3)
    )
    tasks = tuple(TaskNow("j1", 1, pid, 100.0 if pid == 1 else 1000.0, 9.0, {}, 1e8, 2e8) for pid in range(3))
    others = (
        UseFigures(UseKind.WORKER, "environment", {"seconds": 10.0}),
        UseFigures(UseKind.WORKER, "pid 7", {"seconds": 10.0}, AttemptId("j1", -2, 0, 0)),
    )
    first = process("e1", (*uses[:2], *others), tasks[:2])
    first = replace(first, figures={"resident_bytes": 5e7, "peak_resident_bytes": 6e7})
    told = looked((first, process("e2", uses[2:], tasks[2:])))
    assert "The worker pid 1 of e1 is slow: subtask 1 of stage 1 of j1 does 10% of the others' pace." in told["text"]
    assert [row[:7] for row in told["workers"]][1] == ["e1", "pid 1", "j1", 1, 1, 1e8, 2e8]
    assert [row[5:7] for row in told["workers"]][2:4] == [[5e7, 6e7], [None, None]]
    assert [row[5:8] for row in told["processes"]] == [[5e7, 6e7, 2e8], [None, None, 1e8]]


@pytest.mark.parametrize("waiting", [8.0, 1.0])
def test_a_user_that_waits_is_named(waiting: float) -> None:
    """Of a process that serves several; the others' wait stands beside it."""
    before = tuple(UseFigures(UseKind.USER, name, {"bytes": 0.0, "waiting_seconds": 0.0}) for name in ("ann", "bob"))
    after = (
        UseFigures(UseKind.USER, "ann", {"bytes": 5.0, "waiting_seconds": waiting}),
        UseFigures(UseKind.USER, "bob", {"bytes": 5e9, "waiting_seconds": 1.0}),
    )
    told = looked((process("e1", before),), (process("e1", after),))
    assert ("The user ann waits for e1 0.8 s in each second, the others 0.1 s." in told["text"]) is (waiting > 5)
    assert told["users"][1] == ["e1", "bob", 5e9, 5e8, 0.1]


def test_a_process_that_begins_anew_or_goes_is_no_slow_one() -> None:
    """Sums that are smaller than before are of another life; what nobody tells any more is forgotten."""
    looks, many, few = UseLooks(), disk("/", 9e9, 9e9, 90.0), disk("/", 1.0, 1.0, 0.1)
    looks.look((process("e1", (many,)),), 0.0)
    (again,) = looks.look((process("e1", (few,)),), 10.0)
    assert (again.seconds, again.grown["write_bytes"]) == (0.0, 1.0)
    assert looks.look((), 20.0) == []
    (fresh,) = looks.look((process("e1", (many,)),), 30.0)
    assert fresh.seconds == 0.0


def test_a_look_right_after_another_one_says_what_that_said() -> None:
    """Nothing was heard between them: a worker that has worked all the time is busy, and not idle."""
    worker = UseFigures(UseKind.WORKER, "pid 1", {"seconds": 10.0, "busy_seconds": 9.0}, AttemptId("j1", 1, 0, 0))
    looks, processes = UseLooks(), (process("e1", (worker,)),)
    busy = [processes_document(processes, looks.look(processes, now))["workers"][0][7] for now in (0.0, 0.1, 9.0)]
    assert busy == [0.9, 0.9, 0.0]
