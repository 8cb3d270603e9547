# SPDX-License-Identifier: Apache-2.0
"""Pages of the docs that are programs: they run as they stand, and print what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from effort import THOROUGH
from penstock.cli import parser

pytestmark = pytest.mark.spark

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *(penstock .*?) *(?:[#>].*)?$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own as the working one, which the page writes into."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each block of code with what is printed below it; an empty text where nothing is shown."""
    found: list[tuple[str, str]] = []
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "python":
            found.append((text, ""))
        else:
            found[-1] = (found[-1][0], text)
    return found


@pytest.mark.parametrize(
    ("name", "times"),
    [("tutorial", 2 if THOROUGH else 1), ("choosing", 1), ("tuning", 1), ("troubleshooting", 1), ("porting", 1)],
)
def test_a_page_runs_and_prints_what_it_says(
    name: str, times: int, spark: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Block by block in one namespace, as somebody would type it, in this folder's session; twice in one folder."""
    page = DOCS / f"{name}.md"
    group_memory = spark.conf.get("spark.penstock.task.groupMemory", None)
    for _ in range(times):
        names: dict[str, Any] = {"__name__": "__main__"}
        for code, shown in blocks(page):
            exec(compile(code, str(page), "exec"), names)  # noqa: S102 - the page is ours
            printed = capsys.readouterr().out
            if shown:
                assert printed.strip() == shown.strip(), code
        assert names["spark"].sparkContext is spark.sparkContext
    if group_memory is None:
        spark.conf.unset("spark.penstock.task.groupMemory")


@pytest.mark.parametrize("name", ["troubleshooting", "upgrades", "installation", "sessions", "two-hosts"])
def test_commands_of_a_page_are_commands(name: str) -> None:
    """The grammar takes each line of `penstock` in a block of the page."""
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```$", (DOCS / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in COMMAND.findall(re.sub(r"\\\n *", "", block))]
    assert lines
    for line in lines:
        if line != "penstock --version":
            parser().parse_args(shlex.split(line)[1:])
