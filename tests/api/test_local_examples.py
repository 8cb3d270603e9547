# SPDX-License-Identifier: Apache-2.0
"""The examples with state in the local runner, as a unit test of a user's would run its pipeline: without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import DEADLINE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("click_sessions.py", "60 sessions, 60 of 50 clicks"),
        ("fraud_rules.py", "fr: 40 cards are above 1000"),
        ("paid_orders.py", "3000 of 4000 orders are paid within 100 seconds, 0 of them later"),
    ],
)
def test_an_example_runs_in_one_process(name: str, words: str) -> None:
    """It prints what it prints on Spark, and starts no JVM."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--local"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
        env={"PATH": "/nowhere"},
    )
    assert words in ran.stdout
