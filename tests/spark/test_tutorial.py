# SPDX-License-Identifier: Apache-2.0
"""The tutorial runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own as the working one, which the page writes into."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks() -> list[tuple[str, str]]:
    """Each block of code with what is printed below it; an empty text where nothing is shown."""
    found: list[tuple[str, str]] = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            found.append((text, ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


def test_the_page_runs_and_prints_what_it_says(spark: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Block by block in one namespace, as somebody would type it, in this folder's session; twice in one folder."""
    for _ in range(2):
        names: dict[str, Any] = {"__name__": "__main__"}
        for code, shown in blocks():
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - the page is ours
            printed = capsys.readouterr().out
            if shown:
                assert printed.strip() == shown.strip(), code
        assert names["spark"].sparkContext is spark.sparkContext
