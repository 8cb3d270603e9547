# SPDX-License-Identifier: Apache-2.0
"""The tools and the demo as one runs them, in a Spark session of their own; two in a process of their own, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import DEADLINE
from penstock_bench import __main__ as bench
from penstock_bench import row_ways
from sessions import Sessions
from underway import listed

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "count_words.py"


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=DEADLINE, env=dict(os.environ))


def test_word_count_is_plain_pythons(tmp_path: Path) -> None:
    """Counts, totals and the top, in one JSON object that is all of standard output; nothing is left."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("The cat\nthe HAT é\n" * 500)
    (text / "b.txt").write_text("a cat " * 100)
    (text / "c.bin").write_bytes(b"\0\1")
    before = set(listed(Path(os.environ.get("TMPDIR", "/tmp")), "penstock-wordcount-*"))
    ran = _run(str(EXAMPLE), str(text), "--json", "--verify", "--compare", "--top", "2", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["top"] == [["the", 1000], ["cat", 600]]
    assert (report["words"], report["distinct"], report["files"], report["skipped"]) == (2700, 5, 2, 1)
    assert report["verified"]
    assert report["differences"] == []
    assert report["exchange"]["rows"] >= 5
    assert report["seconds"]["spark_jvm"] > 0
    assert "rows/s" not in ran.stderr  # progress is for terminals
    assert set(listed(Path(os.environ.get("TMPDIR", "/tmp")), "penstock-wordcount-*")) == before


def test_bench_on_few_rows(sessions: Sessions, capsys: pytest.CaptureFixture[str]) -> None:
    """The first four cases, each with both sides' times."""
    sessions.stop()
    assert bench.main(["exchange", "--rows", "20000", "--repeat", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [case["rows"] for case in report["cases"]] == [20000, 20000, 20000, 10000]
    for case in report["cases"]:
        assert case["unit"] == "s"
        assert case["ratio"] == pytest.approx(case["spark_median"] / case["penstock_median"], rel=0.1)
        assert len(case["spark"]) == len(case["penstock"]) == 1
        assert case["spark_partitions"] in (2, 4, 8)
    assert report["machine"]["cores"] >= 1


def test_ways_of_rows_beside_a_ping(sessions: Sessions, capsys: pytest.CaptureFixture[str]) -> None:
    """A second of each query: the function has had each row once, and the window each key of each of its windows."""
    sessions.stop()
    queries = ["--query", "function", "--query", "window"]
    assert row_ways.main(["--seconds", "1", "--rate", "1000", "--json", *queries]) == 0
    function, window = map(json.loads, capsys.readouterr().out.splitlines())
    assert function["rows"] in (999, 1000)  # times are rounded, also that from which rows count
    assert window["rows"] >= 10 * row_ways.KEYS
    assert all(each["ping"][share] > 0 for each in (function, window) for share in ("50", "99", "99.9"))


def test_a_row_in_two_trees(tmp_path: Path) -> None:
    """A line with the row's CPU seconds on both sides; here both are this checkout."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    options = ("--turns", "1", "--rows", "1000", "--only", "a thousand")
    ran = _run("-m", "penstock_bench.two_trees", str(tmp_path), *options, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    head, line = ran.stdout.splitlines()
    assert head.split()[0] == "row"
    assert float(line.split()[3]) > 0
    assert float(line.split()[4]) > 0


def test_torture_for_some_seconds(tmp_path: Path) -> None:
    """A line for each case, no failures, nothing left."""
    ran = _run("-m", "penstock_torture", "--seed", "3", "--duration", "2", cwd=tmp_path)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert lines[0] == "seed 3, 2 s"
    assert len(lines) >= 3
    assert lines[-1].endswith("0 failures, 0 left behind")
