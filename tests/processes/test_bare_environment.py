# SPDX-License-Identifier: Apache-2.0
"""An environment as `pip install penstock` makes it has no PySpark, and says so where a name needs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bare_environment import BareEnvironment

_ASKS = """
import importlib.util, sys
assert importlib.util.find_spec("pyspark") is None
import penstock
print(penstock.readText.__name__, "pyspark" in sys.modules)
penstock.webPage(None)
"""


@pytest.fixture
def bare(tmp_path: Path) -> BareEnvironment:
    """Nothing but what Penstock requires."""
    return BareEnvironment(tmp_path / "bare")


def test_names_of_spark_say_how_to_get_it(bare: BareEnvironment) -> None:
    """Import and names work; a call that needs Spark names the extra."""
    ran = bare.run("-c", _ASKS)
    assert ran.stdout.split() == ["readText", "False"]
    assert "SettingError: PySpark is not installed here: pip install 'penstock[spark]'" in ran.stderr


def test_the_doctor_finds_out(bare: BareEnvironment) -> None:
    """`penstock doctor` says that PySpark is missing, and `penstock key` needs none."""
    ran = bare.run("-m", "penstock.cli", "doctor", "--json")
    assert ran.returncode == 1, ran.stderr
    assert '"subject": "PySpark", "level": "WRONG"' in ran.stdout
    assert bare.run("-m", "penstock.cli", "key", "alice").returncode == 0
