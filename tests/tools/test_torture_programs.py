# SPDX-License-Identifier: Apache-2.0
"""The parts of random programs that need no Spark: comparing, the file of results, the settings of seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import PlanError, SettingError
from penstock.spark.function_errors import FunctionError
from penstock_torture.programs.command import ProgramOptions, torture_programs
from penstock_torture.programs.compare import difference
from penstock_torture.programs.differences import documented, is_clear, left_out
from penstock_torture.programs.results import Results
from penstock_torture.programs.run import RIGHT, WRONG, Ending
from penstock_torture.programs.settings import SETTINGS, setting_of


def test_rows_are_compared_as_a_multiset() -> None:
    """Their order counts only where it should; a lost, doubled or changed row always does; equal NaN are equal."""
    rows = pa.table({"v": [1.0, float("nan"), None], "m": [[1, 2], None, []]})
    turned = rows.take([2, 1, 0])
    assert not difference(rows, turned, ordered=False)
    assert "order differs" in difference(rows, turned, ordered=True)
    assert "only theirs (1)" in difference(rows.slice(1), rows, ordered=False)
    assert "only ours (3)" in difference(pa.concat_tables([rows, rows]), rows, ordered=False)
    assert difference(pa.table({"v": ["1"]}), pa.table({"v": [1]}), ordered=False)
    lists = [pa.table({"v": [[missing, 2.0]]}) for missing in (None, float("nan"))]
    assert difference(*lists, ordered=False)
    assert not difference(*lists, ordered=False, nans=False)


def test_maps_are_compared_by_their_keys() -> None:
    """The order of a map's entries says nothing; that of a list of structs does."""
    kind = pa.map_(pa.string(), pa.int64())
    one, other = ([[("a", 1), ("b", 2)]], [[("b", 2), ("a", 1)]])
    assert not difference(pa.table({"m": pa.array(one, kind)}), pa.table({"m": pa.array(other, kind)}), ordered=True)
    lists = [pa.table({"l": [[{"x": 1}, {"x": 2}]]}), pa.table({"l": [[{"x": 2}, {"x": 1}]]})]
    assert difference(*lists, ordered=False)


def test_a_refusal_that_no_page_names_is_a_finding() -> None:
    """Documented ones are those of the table; an inner error of Python's is not clear."""
    assert documented(PlanError("cogroup: keys must have the same type; ..."), None).startswith("keys of a cogroup")
    maps = SettingError("readJson: column 'a' is map<string, int64>, and JSON is not read into maps: declare it")
    assert documented(maps, None) == "JSON is not read into maps"
    assert not documented(PlanError("no such thing"), None)
    assert not documented(None, ValueError("only theirs"))
    assert is_clear(PlanError("here"))
    assert not is_clear(KeyError("inside"))


def test_a_function_that_spark_need_not_run_may_fail_here_only() -> None:
    """In front of `limit(0)` and of `isEmpty()`, and nowhere else; an error of ours is no function's."""
    error = FunctionError("ValueError: on purpose")
    assert left_out(error, "s1.isEmpty()", "s1 = s1.mapInArrow(f3, schema)")
    assert left_out(error, "s1.count()", "s1 = s1.mapInArrow(f3, schema).limit(0)")
    batch = PlanError("job a failed: SchemaError: mapInArrow(f4): return type of the user-defined function")
    assert left_out(batch, "s1.count()", "s1 = s1.mapInArrow(f3, schema).limit(0)")
    assert not left_out(error, "s1.count()", "s1 = s1.mapInArrow(f3, schema).limit(20)")
    assert not left_out(PlanError("no such thing"), "s1.isEmpty()", "")


def test_a_second_call_goes_on(tmp_path: Path) -> None:
    """Seeds that have a line are not run again, and the summary and the failures tell of them all the same."""
    path = tmp_path / "results.jsonl"
    first = Results(path)
    first.add(3, "usual", Ending(RIGHT, "", 0.5, "one\ntwo"))
    first.add(4, "names", Ending(WRONG, "a difference", 0.5, "three"))
    second = Results(path)
    assert second.pending(range(3, 6)) == [5]
    assert second.failures(range(3, 6)) == [4]
    assert second.summary(range(3, 6)).startswith("2 programs: 1 right, 1 WRONG")
    assert json.loads(path.read_text().splitlines()[0])["program"] == ["one", "two"]


def test_a_call_that_has_nothing_to_do_opens_no_session(tmp_path: Path) -> None:
    """It says how the programs of the file ended, and names the failed ones."""
    path = tmp_path / "results.jsonl"
    Results(path).add(0, "usual", Ending(WRONG, "a difference", 0.5, ""))
    said: list[str] = []
    assert torture_programs(ProgramOptions(0, 1, str(path)), said.append) == ["program 0"]
    assert said == ["seeds 0 to 0: 1 programs: 1 WRONG (under usual 1)"]


def test_each_setting_has_seeds() -> None:
    """Every setting comes, but the one that must be asked for; a seed has the same one each time."""
    found = {setting_of(seed) for seed in range(1000)}
    assert found == {name for name, setting in SETTINGS.items() if setting.weight}
    assert [setting_of(7)] * 2 == [setting_of(7), setting_of(7)]
    with pytest.raises(SettingError, match="there is no setting"):
        torture_programs(ProgramOptions(0, 1, setting="none"), print)
