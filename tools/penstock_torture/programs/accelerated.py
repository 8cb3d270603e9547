# SPDX-License-Identifier: Apache-2.0
"""The programs turned round: their PySpark text alone, run with acceleration and without, everything placed.

Rows, types, names, nullability and types of errors must be the same. How many functions ran through Penstock is told
of each program that has any.
"""

from __future__ import annotations

import time
from typing import Any

import penstock
from penstock_torture.programs import function_verbs, verbs
from penstock_torture.programs.compare import difference
from penstock_torture.programs.differences import line_of
from penstock_torture.programs.program import Program, Shape
from penstock_torture.programs.run import (
    ACTIONS,
    ALIKE,
    DOCUMENTED,
    RIGHT,
    UNCLEAR,
    WRONG,
    Ending,
    Verbs,
    drawn,
    own_folder,
)

FUNCTIONS: Verbs = (
    (verbs.filtered, 2),
    (verbs.selected, 2),
    (verbs.with_column, 3),
    (verbs.united, 1),
    (verbs.joined, 1),
    (verbs.aggregated, 1),
    (verbs.sorted_rows, 1),
    (verbs.exchanged, 4),
    (verbs.persisted, 1),
    (function_verbs.mapped_in_arrow, 6),
    (function_verbs.mapped_in_pandas, 5),
    (function_verbs.group_applied, 8),
    (function_verbs.cogrouped, 5),
)


class PlainProgram(Program):
    """A program of which only PySpark's text is run."""

    def step(self, number: str, ours: str, theirs: str) -> bool:
        """Make a frame anew; False where Spark refuses it, and leaves it as it is."""
        return self.both_run(ours, f"d{number} = {theirs.replace('{d}', f'd{number}')}")

    def both_run(self, ours: str, theirs: str) -> bool:
        """Execute PySpark's line; False where Spark refuses it."""
        return self.prepared(theirs)


def run_accelerated(seed: int, spark: Any, shape: Shape, weighted: Verbs = FUNCTIONS) -> Ending:
    """Draw the program of a seed, and run its last line without and with acceleration."""
    began = time.monotonic()
    session = spark.newSession()
    session.conf.set("spark.penstock.acceleration.placed", "everything")
    notes: list[str] = []
    with own_folder() as folder:
        program = PlainProgram(seed, session, folder, shape)
        try:
            outcome, said = _compared(program, session, weighted, notes)
        except Exception as error:  # noqa: BLE001 - a fault of the harness is a finding, too
            outcome, said = UNCLEAR, f"the harness: {line_of(error)}"
        finally:
            program.close()
    seconds = round(time.monotonic() - began, 2)
    return Ending(outcome, said, seconds, program.text.whole(), tuple(notes))


def _compared(program: PlainProgram, session: Any, weighted: Verbs, notes: list[str]) -> tuple[str, str]:
    number = drawn(program, weighted)
    _, action = program.draw.choice(ACTIONS)
    text = action.format(d=f"d{number}")
    program.text.theirs.append(f"answer = {text}")
    plain = program.again(text)
    with penstock.accelerated(session):
        found = program.again(text)
        for record in penstock.acceleration(session):
            if record.functions or record.left:
                notes.append(f"placed {record.functions}, left {len(record.left)}")
                notes.extend(record.left)
    if isinstance(plain, Exception) or isinstance(found, Exception):
        said = f"with: {_told(found)}; without: {_told(plain)}"
        if isinstance(plain, Exception) and "is declared NOT NULL and has" in str(found):
            return DOCUMENTED, f"a null where none may be is refused, and Spark fails inside: {said}"
        return (ALIKE if type(plain) is type(found) else WRONG), said
    if not (why := difference(found, plain, ordered=program.ordered)):
        return RIGHT, "; ".join(notes[:1])
    again = program.again(text)
    if isinstance(again, Exception) or difference(again, plain, ordered=program.ordered):
        return UNCLEAR, f"the program has more than one right answer: {why}"
    return WRONG, why


def _told(answer: object) -> str:
    return line_of(answer) if isinstance(answer, Exception) else "an answer"
