# SPDX-License-Identifier: Apache-2.0
"""What a Python worker does beside our tasks: imports ahead, and no tracebacks of closed pipes."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from penstock.daemon import preload
from penstock.spark.python_worker import leave_out_closed_pipes


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
    """What Spark closed is left out, whatever else went wrong is printed."""
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
        "print(len([name for name in names if not name.startswith('jemalloc')]), 'grpc' in sys.modules)"
    )
    environment = {"OMP_NUM_THREADS": "1", "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.split("\n")[:2] == ["['no_such_module'] True True", "1 False"]


def test_what_is_missing_is_named() -> None:
    """One bad name keeps none of the others out."""
    assert preload("no_such_module,, json") == ["no_such_module"]
