# SPDX-License-Identifier: Apache-2.0
"""A session's first job: workers that begin with all imports done, and where their environment stores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.settings import Settings
from penstock.spark import application
from penstock.spark.application import Application, start_workers
from penstock.spark.preflight import import_ahead, is_here, run_workers_in_this_python
from penstock.spark.runtime import session_conf
from penstock.spark.shared_workers import in_shared_workers
from penstock.spark.slots import only_local_folder
from penstock.testing import DEADLINE

_DAEMON = "spark.python.daemon.module"


def _module_of_the_daemon(_: Iterator[int]) -> Iterator[str]:
    yield Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")[2]
    yield os.environ["SPARK_LOCAL_DIRS"]


@pytest.mark.spark
def test_a_running_session_takes_our_daemon(spark: Any) -> None:
    """If the user has set none, workers that come from now on are ours; a daemon that he has set stays."""
    conf, context = spark.sparkContext._jsc.sc().conf(), spark.sparkContext
    before = conf.get(_DAEMON)
    try:
        conf.remove(_DAEMON)
        import_ahead(context)
        assert conf.get(_DAEMON) == "penstock.daemon"
        module, folder = context.parallelize([0], 1).mapPartitions(_module_of_the_daemon).collect()
        conf.set(_DAEMON, "pyspark.daemon")
        import_ahead(context)
        assert conf.get(_DAEMON) == "pyspark.daemon"
    finally:
        conf.set(_DAEMON, before)
    assert module == "penstock.daemon"
    assert (
        Path(only_local_folder(context)).parent == Path(folder).parent
    )  # Spark has a folder for itself, and one more


@pytest.mark.spark
def test_a_dataframe_that_is_older_than_the_first_stream_keeps_its_workers(
    spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was made with the path's Python, which knows no Penstock: our daemon could not start there."""
    conf, context = spark.sparkContext._jsc.sc().conf(), spark.sparkContext
    before = conf.get(_DAEMON)
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(context, "pythonExec", "python3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    try:
        conf.remove(_DAEMON)
        run_workers_in_this_python(context)
        assert context.pythonExec == sys.executable
        import_ahead(context)
        assert not conf.contains(_DAEMON)
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        import_ahead(context)
        assert conf.get(_DAEMON) == "penstock.daemon"
    finally:
        conf.set(_DAEMON, before)


def test_another_python_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same file under another folder is another environment, which may have no Penstock."""
    assert is_here(sys.executable)
    elsewhere = tmp_path / "python"
    elsewhere.symlink_to(sys.executable)
    assert not is_here(str(elsewhere))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert is_here(Path(sys.executable).name)
    assert not is_here("no-such-python")


def _daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch([pa.array([os.getppid()])], names=["pid"])


@pytest.mark.spark
def test_workers_that_are_started_early_are_those_of_the_job(spark: Any) -> None:
    """The task that does nothing runs under the daemon that reads DataFrames later, with all imports done."""
    context, conf = spark.sparkContext, session_conf(spark)
    start_workers(context, conf)
    numbers = in_shared_workers(context.parallelize([0], 1).mapPartitions(lambda _: [os.getppid()]), conf)
    (early,) = numbers.collect()
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(_daemon, "pid long").collect()
    assert row.pid == early


@pytest.mark.spark
def test_workers_are_started_early_for_the_first_job_that_plans_frames(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only beside the planning of a first job's DataFrames there is time to win; no later job starts them again."""
    began: list[str] = []
    monkeypatch.setattr(application, "start_workers", lambda *_: began.append(threading.current_thread().name))
    settings = Settings.from_conf({"spark.penstock.environment.scope": "executor"})  # leaves the environment out
    for first, expected in ((False, 0), (True, 1)):
        one = Application(spark.sparkContext)
        try:
            for plans_frames in (first, True):
                one.start_ahead(settings, {}, plans_frames=plans_frames)
                for thread in [thread for thread in threading.enumerate() if thread.name == "penstock-start-workers"]:
                    thread.join(DEADLINE)
        finally:
            one.close()
        assert len(began) == expected


@pytest.mark.spark
def test_workers_that_cannot_be_started_early_are_no_error(spark: Any) -> None:
    """A cancelled or impossible early start is left to the first real task, which says what is wrong."""

    class Stopped:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the session was stopped")

    start_workers(Stopped(), session_conf(spark))  # type: ignore[arg-type] - what a stopped context does
