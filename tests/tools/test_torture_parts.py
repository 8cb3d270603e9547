# SPDX-License-Identifier: Apache-2.0
"""Torture without Spark: seeds repeat themselves, right cases pass, and each kind of wrong ending is noticed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.testing import DEADLINE
from penstock_torture import command
from penstock_torture.cluster import spark_home
from penstock_torture.long_session import ACTIONS, MODES, LongJob
from penstock_torture.recipe import Exchange, Recipe, Step, random_recipe
from penstock_torture.session_figures import SLACK, Figures, describe, growth, look

PLAIN = Recipe("t", 100, (pa.string(),), 2, (Exchange("key", 2, "c0"), Step("keep")), "", "", 0.0)


def test_a_seed_repeats_itself() -> None:
    """The same case from the same seed, another from another."""
    assert random_recipe(7, 3, spark=True) == random_recipe(7, 3, spark=True)
    assert len({random_recipe(seed, 3, spark=True).describe() for seed in range(20)}) > 10


@pytest.mark.parametrize("number", range(12))
def test_local_cases_end_well(number: int) -> None:
    """A dozen cases of a seed."""
    is_well, text = command.run_case(random_recipe(11, number, spark=False))
    assert is_well, text


def test_wrong_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that lacks a row is a failure."""
    run = command.run_local
    monkeypatch.setattr(command, "run_local", lambda *given, **named: run(*given, **named).slice(1))
    is_well, text = command.run_case(PLAIN)
    assert not is_well
    assert "differ" in text


def test_an_error_without_harm_is_a_failure() -> None:
    """The same error is right where harm was done."""
    raising = replace(PLAIN, steps=(Step("raise"), *PLAIN.steps))
    assert not command.run_case(raising)[0]
    assert command.run_case(replace(raising, harm="raise"))[0]


def test_an_error_that_is_not_ours_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where harm was done."""

    def fail(*given: object, **named: object) -> pa.Table:
        raise KeyError("inside")

    monkeypatch.setattr(command, "run_local", fail)
    assert not command.run_case(replace(PLAIN, harm="raise"))[0]


def test_a_case_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after its time."""
    import threading

    gate = threading.Event()
    monkeypatch.setattr(command, "run_local", lambda *given, **named: gate.wait(DEADLINE) and PLAIN.table())
    is_well, text = command.run_case(PLAIN, seconds=0.05)
    gate.set()
    assert not is_well
    assert "did not end" in text


def figures(**named: int) -> Figures:
    """Figures of a session, 0 where nothing is said."""
    return {**dict.fromkeys(SLACK, 0), **named}


def test_what_grows_in_a_long_session_is_said() -> None:
    """A leak of a file for each job is found; warming up, and what comes and goes, is no growth."""
    leaking = [figures(driver_files=20 * number) for number in range(9)]
    assert growth(leaking) == ["driver_files grew from 100 to 160"]
    steady = [
        figures(disk_bytes=[100 << 20, 10 << 20][number % 2], threads=min(9, 9 * number)) for number in range(9)
    ]
    assert growth(steady) == []
    assert growth([figures(results=number) for number in (0, 500)]) == []
    for looks in (15, 30):
        assert growth([figures(disk_bytes=(900 << 20) * (number == looks - 3)) for number in range(looks)]) == []
    leaking = [figures(driver_files=20 * number) for number in range(30)]
    assert growth(leaking) == ["driver_files grew from 360 to 560"]


def test_a_task_that_grows_in_a_long_query_is_said() -> None:
    """The largest task is compared, third by third; a query that was looked at twice says nothing."""

    def tasks(*megabytes: int) -> list[Figures]:
        return [{"task_bytes": each << 20} for each in megabytes]

    assert growth(tasks(0, 100, 200, 300, 400, 500)) == ["task_bytes grew from 314,572,800 to 524,288,000"]
    assert growth(tasks(0, 0, 300, 310, 290, 320)) == []
    assert growth(tasks(0, 1 << 20)) == []


def test_figures_are_said_in_one_line() -> None:
    """Bytes in megabytes, numbers of things as they are."""
    assert describe({"driver_bytes": 3 << 20, "driver_files": 7}) == "driver 3 MB, 7 driver files"


def test_memory_that_is_in_use_is_told_from_what_an_allocator_keeps() -> None:
    """The bytes that Arrow and the C library have given out follow those held, at any size of the process."""
    before = look("no-application")
    held = [pa.allocate_buffer(64 << 20, resizable=True), ctypes.create_string_buffer(64 << 20)]
    during = look("no-application")
    del held
    after = look("no-application")
    for name in ("driver_arrow_bytes", "driver_c_library_bytes"):
        assert during[name] - before[name] > 60 << 20
        assert during[name] - after[name] > 60 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_what_threads_have_freed_is_not_held_against_a_session() -> None:
    """Eight threads that free 20 MB each leave less than that in all; else glibc keeps it for each of them."""
    program = """if True:
        import os, threading
        from penstock_bench.environment import own_bytes
        from penstock_torture.session_figures import give_back, keep_little
        keep_little()
        def work(here):
            for _ in range(2):
                block = b"x" * (20 << 20)
                here.wait()
                del block
                here.wait()
        before = own_bytes(os.getpid())
        here = threading.Barrier(8)
        threads = [threading.Thread(target=work, args=(here,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        give_back()
        print(own_bytes(os.getpid()) - before)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20 << 20


def test_jobs_of_a_long_session_repeat_themselves() -> None:
    """The same from the same seed, without harm of their own, in all modes and with all actions."""
    jobs = [LongJob.random(5, number) for number in range(100)]
    assert jobs == [LongJob.random(5, number) for number in range(100)]
    assert {job.mode for job in jobs} == set(MODES)
    assert {job.action for job in jobs} == set(ACTIONS)
    assert not any(job.recipe.harm or Step("raise") in job.recipe.steps for job in jobs)


def test_a_cluster_leaves_the_folders_of_others_alone() -> None:
    """Another process that has a cluster meanwhile, with an application of the same second, takes nothing away."""
    other = """if True:
        import os
        from pathlib import Path
        from penstock_torture.cluster import spark_home
        with spark_home():
            Path(os.environ["SPARK_HOME"], "work/app-20260101000000-0000/0").mkdir(parents=True)
            print(os.environ["SPARK_HOME"])
    """
    before = os.environ.get("SPARK_HOME")
    with spark_home():
        home = Path(os.environ["SPARK_HOME"])
        assert (home / "bin" / "spark-class").is_file()
        executor = home / "work" / "app-20260101000000-0000" / "0"
        executor.mkdir(parents=True)
        theirs = subprocess.run([sys.executable, "-c", other], check=True, capture_output=True, text=True).stdout
        assert not Path(theirs.strip()).exists()
        assert executor.is_dir()
    assert not home.exists()
    assert os.environ.get("SPARK_HOME") == before
