# SPDX-License-Identifier: Apache-2.0
"""An environment without extras has no PySpark, and says so where a name needs one."""

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
    assert "SettingError: PySpark is not installed here: pip install 'pyspark" in ran.stderr


def test_an_old_pyspark_is_refused_in_one_sentence(bare: BareEnvironment) -> None:
    """The first use and the doctor name the version that is needed, before a verb fails of an import."""
    package = bare.packages / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text('__version__ = "4.0.1"')
    ran = bare.run("-c", "import penstock; penstock.webPage(None)")
    assert "SettingError: Penstock needs PySpark 4.1 or later, and PySpark 4.0.1 is installed here" in ran.stderr
    assert "PySpark 4.1 or later" in bare.run("-m", "penstock.cli", "doctor", "--json").stdout


def test_the_doctor_finds_out(bare: BareEnvironment) -> None:
    """`penstock doctor` says that PySpark is missing, and `penstock key` needs none."""
    ran = bare.run("-m", "penstock.cli", "doctor", "--json")
    assert ran.returncode == 1, ran.stderr
    assert '"subject": "PySpark", "level": "WRONG"' in ran.stdout
    assert bare.run("-m", "penstock.cli", "key", "alice").returncode == 0
