# SPDX-License-Identifier: Apache-2.0
"""A Python worker besides our tasks: imports ahead, and no tracebacks of closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pyspark
import pytest

from penstock.daemon import leave_out_archives, preload
from penstock.spark.python_worker import leave_out_closed_pipes
from underway import listed


def _printing(error: Exception) -> None:
    daemon = types.ModuleType("a_daemon")
    exec("import traceback\ndef failed():\n    traceback.print_exc()\n", daemon.__dict__)  # noqa: S102
    leave_out_closed_pipes(daemon)
    leave_out_closed_pipes(daemon)
    try:
        raise error
    except type(error):
        daemon.failed()


def test_closed_pipes_are_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of a pipe that Spark closed is left out, any other is printed."""
    _printing(BrokenPipeError(32, "Broken pipe"))
    _printing(ConnectionResetError(104, "reset"))
    assert capsys.readouterr().err == ""
    _printing(ValueError("boom"))
    assert "ValueError: boom" in capsys.readouterr().err


def test_the_daemon_imports_ahead_and_starts_no_thread() -> None:
    """All that our workers need is there before the fork, with no thread but that of Arrow's allocator."""
    program = (
        "import sys, os; from penstock.daemon import preload; missing = preload('json, no_such_module')\n"
        "print(missing, 'penstock.spark.task' in sys.modules, 'pyspark.worker' in sys.modules)\n"
        "names = [open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]\n"
        "print(len([name for name in names if not name.startswith('jemalloc')]), 'asyncio' in sys.modules)"
    )
    environment = {"OMP_NUM_THREADS": "1", "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.split("\n")[:2] == ["['no_such_module'] True True", "1 False"]


def test_what_is_missing_is_named() -> None:
    """One bad name keeps none of the others out."""
    assert preload("no_such_module,, json") == ["no_such_module"]


def test_the_daemon_reads_no_archive_where_the_same_is_installed() -> None:
    """PySpark comes from its installed files, compiled, and no archive is left that each worker would list again."""
    library = Path(pyspark.__file__).parent / "python" / "lib"
    archives = [str(library / "pyspark.zip"), *map(str, listed(library, "py4j-*.zip"))]
    program = (
        "import sys, zipimport; from penstock.daemon import forget_archives, leave_out_archives, look_up\n"
        "leave_out_archives(); import pyspark; look_up(); forget_archives()\n"
        "print([entry for entry in sys.path if entry.endswith('.zip') and 'pyspark' in entry], pyspark.__file__)\n"
        "print([f for f in sys.path_importer_cache.values() if isinstance(f, zipimport.zipimporter)])"
    )
    environment = {"PYTHONPATH": os.pathsep.join(archives), "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.splitlines() == [f"[] {pyspark.__file__}", "[]"]


def test_another_archive_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An archive of a PySpark that is not installed beside it is the only one there is."""
    other = str(tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip")
    monkeypatch.setattr(sys, "path", [other, *sys.path])
    leave_out_archives()
    assert sys.path[0] == other
