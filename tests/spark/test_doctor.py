# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor` against a real session, whose workers lack Penstock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import java_starts
from penstock.settings import Settings
from penstock.spark.hints import PenstockWarning
from penstock.spark.preflight import warn_of_what_is_wrong

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_workers_without_penstock_get_a_sentence(tmp_path: Path) -> None:
    """Exit code 1; the finding about the workers names what is missing and what to do; the rest is told, too."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    # Without this run's own defaults, whose daemon is Penstock's.
    env = {**os.environ, java_starts.VARIABLE: java_starts.options(defaults=False)}
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main(['doctor', '--json']))"],
        capture_output=True,
        text=True,
        env={**env, "PYSPARK_PYTHON": str(python)},
    )
    assert ran.returncode == 1, ran.stderr
    findings = {row["subject"]: row for row in json.loads(ran.stdout)}
    assert findings["workers"]["level"] == "WRONG"
    assert findings["workers"]["what"] == "ModuleNotFoundError: No module named 'penstock'"
    assert findings["workers"]["advice"].startswith("Penstock is not installed where Spark's workers run")
    assert findings["Java"]["level"] == findings["Python"]["level"] == "ok"


def test_before_the_first_job_only_what_is_wrong_is_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Nothing where all is well; a folder that is not there is named."""
    warn_of_what_is_wrong(Settings())
    assert not recwarn.list
    settings = Settings.from_conf({"spark.penstock.blocking.directories": str(tmp_path / "missing")})
    with pytest.warns(
        PenstockWarning, match=r"missing cannot be written to: name another folder \(see penstock doctor\)"
    ):
        warn_of_what_is_wrong(settings)
