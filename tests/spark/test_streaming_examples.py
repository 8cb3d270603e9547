# SPDX-License-Identifier: Apache-2.0
"""The examples of streaming queries, run to their ends as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    """The example's output; it must end well."""
    env = {**os.environ, "TMPDIR": str(folder), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_words_of_files_that_arrive(tmp_path: Path) -> None:
    """Five files of three lines; the word that is in each line is counted fifteen times."""
    assert run("streaming_words.py", tmp_path).split()[:2] == ["the", "15"]


def test_kill_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    """The process that ran a task is gone, and every number is there once."""
    printed = run("streaming_kill.py", tmp_path, "--rows", "12000")
    assert "is killed" in printed
    assert "12,000 rows, 0 lost, 0 doubled" in printed
