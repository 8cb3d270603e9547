# SPDX-License-Identifier: Apache-2.0
"""The bench of programs without a session: lines, answers that differ, names, the printed table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import SettingError
from penstock_bench.program_runs import ProgramOutcome, chosen, table_lines
from penstock_bench.programs.answers import difference
from penstock_bench.programs.catalogue import PROGRAMS
from penstock_bench.programs.program import form_lines


def test_no_program_is_longer_than_its_plain_form() -> None:
    """At least eleven programs, and lines of code counted without docstrings, comments and empty lines."""
    assert len(PROGRAMS) >= 11
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    longer = [one.name for one in PROGRAMS if form_lines(one.penstock) > form_lines(one.pyspark)]
    assert not longer


def test_lines_are_counted_without_prose() -> None:
    """Two functions count together; a docstring of two lines, a comment and an empty line count for nothing."""

    def one() -> int:
        """Text.

        More text.
        """
        # a comment

        return 1

    assert form_lines((one, one)) == 4


def test_answers_are_compared_as_sets_of_rows() -> None:
    """Neither the order of rows nor that of columns counts, nor a double's last digit; all else does."""
    rows = pa.table({"k": ["a", "b"], "v": [0.1 + 0.2, 2.0]})
    assert difference(rows, pa.table({"v": [2.0, 0.3], "k": ["b", "a"]})) is None
    assert difference(rows, pa.table({"k": ["a", "b"], "v": [0.3, 2.1]})) == "row 1 is ('b', 2.0), not ('b', 2.1)"
    assert "3 rows" in str(difference(pa.table({"k": [1, 1, 2]}), pa.table({"k": [1, 2]})))
    assert "columns" in str(difference(rows, rows.rename_columns(["k", "w"])))
    assert "types" in str(difference(rows, rows.set_column(1, "v", [["x", "y"]])))


def test_programs_are_chosen_by_parts_of_their_names() -> None:
    """A part may name several; a name that nothing has is refused with those there are."""
    assert [one.name for one in chosen(["PageRank"])] == ["PageRank by joins", "PageRank by arrays"]
    assert chosen([]) == PROGRAMS
    with pytest.raises(SettingError, match="there are word count, PageRank"):
        chosen(["nothing"])


def test_the_table_names_what_the_docs_advise_against() -> None:
    """Medians of the runs, their ratio, both line counts; the second median leaves such programs out."""
    plain, against = (next(p for p in PROGRAMS if bool(p.against) is wanted) for wanted in (False, True))
    outcomes = [
        ProgramOutcome(plain, 10, (3.0, 9.0, 4.0), (1.0, 2.0, 5.0)),
        ProgramOutcome(against, 5, (1.0,), (2.0,)),
    ]
    head, first, second, *medians = table_lines(outcomes)
    assert head.split() == ["program", "rows", "PySpark", "Penstock", "times", "lines"]
    assert "4.00 s" in first
    assert "2.00 s   2.00" in first
    assert second.endswith(f"({against.against})")
    assert medians == ["median of all: 1.25", "median of those with a Python stage: 2.00"]
    assert outcomes[1].to_json()["ratio"] == 0.5
