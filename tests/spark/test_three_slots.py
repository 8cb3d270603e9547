# SPDX-License-Identifier: Apache-2.0
"""The word count of two maps and two reduces on two, three and four slots, as the example draws it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sessions import Sessions

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).resolve().parents[2] / "examples"
LINE = re.compile(r"^  (map|reduce) (\d) .*\| +([\d.]+) to +([\d.]+) s$")
Times = dict[str, tuple[float, float]]


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example's script as a module, whose functions go to Spark's workers as code."""
    from pyspark import cloudpickle

    sys.path.insert(0, str(FOLDER))
    try:
        module = importlib.import_module("three_slots")
        cloudpickle.register_pickle_by_value(module)
        yield module
        cloudpickle.unregister_pickle_by_value(module)
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("three_slots", None)


def lines_by_mode(shown: str, slots: int) -> dict[str, list[str]]:
    """The example's lines for each mode."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if line.endswith(f", {slots} slots"):
            lines = found[line.partition(",")[0]] = []
        elif found:
            lines.append(line)
    return found


def times(lines: list[str]) -> Times:
    """When each task ran."""
    found = [match for line in lines if (match := LINE.match(line))]
    return {f"{m[1]} {m[2]}": (float(m[3]), float(m[4])) for m in found}


@pytest.mark.thorough
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_when_tasks_run(
    slots: int, example: ModuleType, sessions: Sessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocking: maps, then reduces. Pipelined: only with four slots. Hybrid: a reduce starts when it has a slot."""
    sessions.stop()
    assert example.main(["--slots", str(slots)]) == 0
    shown = lines_by_mode(capsys.readouterr().out, slots)
    assert set(shown) == {"blocking", "pipelined", "hybrid"}
    blocking, hybrid = times(shown["blocking"]), times(shown["hybrid"])
    assert set(blocking) == set(hybrid) == {"map 1", "map 2", "reduce 1", "reduce 2"}
    assert min(blocking["reduce 1"][0], blocking["reduce 2"][0]) >= max(blocking["map 1"][1], blocking["map 2"][1])
    ends = sorted(hybrid[name][1] for name in ("map 1", "map 2"))
    starts = sorted(hybrid[name][0] for name in ("reduce 1", "reduce 2"))
    assert max(hybrid["map 1"][0], hybrid["map 2"][0]) < ends[0], "the maps run at the same time"
    if slots == 2:
        assert starts[0] >= ends[0]
    else:
        assert starts[0] < ends[0], "one reduce takes the slot that the maps leave"
        assert (starts[1] >= ends[0]) == (slots == 3)
    if slots == 4:
        assert len(times(shown["pipelined"])) == 4
    else:
        assert f"needs 4 task slots at the same time, but the application has {slots}" in shown["pipelined"][0]
    for mode in ("blocking", "hybrid"):
        assert "1,280,000 words" in shown[mode][4]
    if slots == 3:
        stored = re.search(r"([\d.]+) MB of them from disk", shown["hybrid"][4])
        assert stored is not None
        assert float(stored[1]) > 0
