# SPDX-License-Identifier: Apache-2.0
"""A session's first job: workers that begin with all imports done, and where their environment stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.preflight import import_ahead, is_here
from penstock.spark.slots import only_local_folder

_DAEMON = "spark.python.daemon.module"


def _module_of_the_daemon(_: Iterator[int]) -> Iterator[str]:
    yield Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split("\0")[2]
    yield os.environ["SPARK_LOCAL_DIRS"]


@pytest.mark.spark
def test_a_running_session_takes_our_daemon(spark: Any) -> None:
    """Where the user has set none, workers that come from now on are ours; what he has set stays."""
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


def test_another_python_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same file under another folder is another environment, which may have no Penstock."""
    assert is_here(sys.executable)
    elsewhere = tmp_path / "python"
    elsewhere.symlink_to(sys.executable)
    assert not is_here(str(elsewhere))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert is_here(Path(sys.executable).name)
    assert not is_here("no-such-python")
