# SPDX-License-Identifier: Apache-2.0
"""Draws a program, runs it on both sides, and says how it ended."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.api.keyed_stream import KeyedStream
from penstock_torture.programs import files, function_verbs, verbs
from penstock_torture.programs.compare import difference
from penstock_torture.programs.differences import documented, is_clear, left_out, line_of
from penstock_torture.programs.program import Program, Shape, StepError, schema_difference

_FLOATS_IN_FRAMES = re.compile(r"ArrayType\(FloatType.*InPandas|InPandas.*ArrayType\(FloatType", re.DOTALL)
RIGHT, ALIKE, DOCUMENTED, WRONG, UNCLEAR = "right", "refused alike", "documented", "WRONG", "UNCLEAR"
WELL = (RIGHT, ALIKE, DOCUMENTED)

Verbs = tuple[tuple[verbs.Verb, int], ...]
VERBS: Verbs = (
    (verbs.filtered, 3),
    (verbs.selected, 3),
    (verbs.with_column, 3),
    (verbs.renamed, 1),
    (verbs.dropped, 1),
    (verbs.united, 4),
    (verbs.joined, 4),
    (verbs.aggregated, 4),
    (verbs.made_distinct, 2),
    (verbs.sorted_rows, 2),
    (verbs.exploded, 4),
    (verbs.exchanged, 4),
    (verbs.persisted, 1),
    (function_verbs.mapped_in_arrow, 6),
    (function_verbs.mapped_in_pandas, 4),
    (function_verbs.group_applied, 5),
    (function_verbs.cogrouped, 2),
    (files.through_parquet, 2),
    (files.through_csv, 1),
    (files.through_json, 1),
)
_NULLS = "{d}.select(*[F.count_if(F.col('`' + c.replace('`', '``') + '`').isNull()) for c in {d}.columns]).collect()"
ACTIONS: tuple[tuple[str, str], ...] = (
    ("{s}.toDF().toArrow()", "{d}.toArrow()"),
    ("{s}.toArrow()", "{d}.toArrow()"),
    ("{s}.toDF().collect()", "{d}.collect()"),
    ("{s}.collect()", "{d}.collect()"),
    ("{s}.toPandas()", "{d}.toPandas()"),
    ("{s}.count()", "{d}.count()"),
    ("{s}.isEmpty()", "{d}.isEmpty()"),
    (_NULLS.replace("{d}", "{s}.toDF()"), _NULLS),
)
_MODES = ("auto", "auto", "pipelined", "blocking", "hybrid", "hybrid_selective")


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending of a program, with its text."""

    outcome: str
    said: str
    seconds: float
    text: str
    notes: tuple[str, ...] = ()


def run_program(seed: int, spark: Any, shape: Shape, weighted: Verbs = VERBS) -> Ending:
    """Draw the program of a seed, of these verbs, and run it on both sides."""
    began = time.monotonic()
    with own_folder() as folder:
        session = spark.newSession()
        program = Program(seed, session, folder, shape)
        try:
            outcome, said = _ended(program, weighted)
        except StepError as error:
            outcome, said = error.kind, str(error)
        except Exception as error:  # noqa: BLE001 - a fault of the harness is a finding, too
            outcome, said = UNCLEAR, f"the harness: {line_of(error)}"
        finally:
            program.close()
    if program.differences:
        outcome, said = WRONG, "; ".join([*program.differences, *([said] if outcome not in WELL else [])])
    seconds = round(time.monotonic() - began, 2)
    return Ending(outcome, said, seconds, program.text.whole(), tuple(program.notes))


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for one program's files."""
    with tempfile.TemporaryDirectory(prefix="penstock-program-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _ended(program: Program, weighted: Verbs) -> tuple[str, str]:
    return _acted(program, drawn(program, weighted))


def drawn(program: Program, weighted: Verbs) -> str:
    """Draw the settings and the steps of a program; the number of its last frame."""
    draw = program.draw
    is_exact = program.shape.twins or draw.random() < 0.2
    for key, value in (
        ("spark.penstock.shuffle.mode", draw.choice(_MODES)),
        ("spark.sql.caseSensitive", str(is_exact).lower()),
        ("spark.sql.session.timeZone", draw.choice(("UTC", "UTC", "Europe/Berlin", "America/Los_Angeles"))),
        ("spark.sql.ansi.enabled", draw.choice(("true", "true", "false"))),
        ("spark.sql.adaptive.enabled", "false"),  # else Spark never runs the functions beside a table without rows
    ):
        program.define(f"spark.conf.set({key!r}, {value!r})")
    is_folder = not program.shape.source and draw.random() < program.shape.folders
    number = files.a_folder(program) if is_folder else program.table()
    steps, weights = zip(*weighted, strict=True)
    for _ in range(draw.randint(min(1, program.shape.steps), program.shape.steps)):
        program.ordered = False
        draw.choices(steps, weights)[0](program, number)
    if program.shape.last[0]:
        program.step(number, *program.shape.last)
    return number


def _acted(program: Program, number: str) -> tuple[str, str]:
    choices = [one for one in ACTIONS if not (program.shape.said and "isEmpty" in one[0])]  # reads but a part
    ours, theirs = (text.format(s=f"s{number}", d=f"d{number}") for text in program.draw.choice(choices))
    stream, frame = program.value(f"s{number}"), program.value(f"d{number}")
    if isinstance(stream, KeyedStream):
        ours = ours.replace(".count()", ".toDF().count()")  # that of a keyed stream counts each group
    mine, other = program.answers(ours, theirs)
    if isinstance(mine, Exception) or isinstance(other, Exception):
        if not isinstance(other, Exception) and left_out(mine, ours, program.text.whole()):
            return DOCUMENTED, f"a function runs over all rows that come to it: ours: {line_of(mine)}"
        return _errors(mine, other, program.shape.said)
    found = schema_difference(stream.toDF().schema, frame.schema)
    if found:
        return WRONG, f"schema of toDF(): {found}"
    found = difference(mine, other, ordered=program.ordered)
    if not found:
        return RIGHT, ""
    text, ordered = program.text.whole(), program.ordered
    if "median(" in text and not difference(mine, other, ordered=ordered, signs=False):
        return DOCUMENTED, f"zeros of both signs are equal, and either may be a median: {found}"
    if _FLOATS_IN_FRAMES.search(text) and not difference(mine, other, ordered=ordered, nans=False):
        return DOCUMENTED, f"PySpark's frames make NaNs of nulls in arrays of floats: {found}"
    again = program.again(theirs)
    if isinstance(again, Exception) or difference(again, other, ordered=program.ordered):
        return UNCLEAR, f"the program has more than one right answer: {found}"
    return WRONG, found


def _errors(mine: Any, other: Any, wanted: str) -> tuple[str, str]:
    errors = [answer if isinstance(answer, Exception) else None for answer in (mine, other)]
    said = f"ours: {line_of(errors[0])}; theirs: {line_of(errors[1])}"
    if reason := documented(*errors):
        return DOCUMENTED, f"{reason}: {said}"
    if errors[1] is None and wanted and wanted in str(errors[0]):
        return DOCUMENTED, f"Spark left out a part that it needed no rows of: {said}"
    if errors[0] is None:
        return WRONG, said
    if errors[1] is None or not (is_clear(errors[0]) or type(mine) is type(other)):
        return UNCLEAR, said
    if wanted in str(errors[1]) and wanted not in str(errors[0]):
        return UNCLEAR, f"ours does not say why: {said}"
    return ALIKE, said
