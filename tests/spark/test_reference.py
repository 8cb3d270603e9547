# SPDX-License-Identifier: Apache-2.0
"""The examples of the API reference run as one program; `.ci/first-day` runs them outside of the checkout, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "reference.py"


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice of ours, such as that there is no archive of classes
def test_the_examples_of_the_reference_run(
    spark: Any, delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this folder's session, in a folder of the test's own; what they print is what they say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(PROGRAM.read_text(), str(PROGRAM), "exec"), names)  # noqa: S102 - the program is ours
    finally:
        spark.catalog.dropTempView("counts")
    printed = capsys.readouterr().out
    assert "3 rows in 3 files" in printed
    assert names["rows"] == 3
    assert [row.asDict() for row in names["newest"].sort("user").collect()] == [
        {"user": "ann", "count": 2},
        {"user": "bob", "count": 1},
    ]
