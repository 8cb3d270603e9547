# SPDX-License-Identifier: Apache-2.0
"""A program while it is drawn: its text on both sides, and the streams and DataFrames that the text has made.

Each step is executed on both sides as it is drawn, so that the next one knows the columns that there are: Spark's
analyser says them. A step that both sides refuse, or that a page says we refuse, is left out; the text keeps it as
a comment.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from penstock.spark.types import struct_type
from penstock_torture.programs.differences import documented, is_clear, line_of
from penstock_torture.programs.values import random_schema, spelled

_HEADER = """\
from typing import Iterator
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import *
from pyspark.ml.linalg import VectorUDT
import penstock
from penstock_torture.programs.files import folder_of
from penstock_torture.programs.values import rows_of
"""


class StepError(Exception):
    """A step that is a finding: the program ends with it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class Text:
    """The source text: what both sides share, and each side's own."""

    shared: list[str] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    theirs: list[str] = field(default_factory=list)

    def whole(self) -> str:
        """As one readable text that runs where there is a session `spark` and a folder `folder`."""
        parts = [_HEADER.strip(), *self.shared, "# Penstock", *self.ours, "# PySpark", *self.theirs]
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a program: how large its tables are, and what their names are like."""

    rows: tuple[int, ...] = (0, 1, 3, 20, 20, 60, 60, 200, 1000)
    odd: float = 0.15
    twins: bool = False
    steps: int = 5
    partitions: tuple[int, ...] = (1, 1, 2, 4)
    prelude: str = ""
    source: str = ""
    """PySpark code over table `{d}` that stands after the first table, for each `{side}`, and what it needs."""
    said: str = ""
    """The error of the source, if it has one, which ours must say too."""
    last: tuple[str, str] = ("", "")
    """A step at the end of the program, over `{s}` and `{d}`."""
    scratch_megabytes: int = 8
    folders: float = 0.2
    """The share of programs that begin with a folder of files of several writers."""


class Program:
    """One program. `d` names are DataFrames, `s` names are streams; both are numbered alike."""

    def __init__(self, seed: int, spark: Any, folder: Path, shape: Shape) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - nothing secret
        self.seed = seed
        self.folder = folder
        self.shape = shape
        self.text = Text()
        self.notes: list[str] = []
        self.ordered = False
        self.differences: list[str] = []
        self._made = 0
        self._names: dict[str, Any] = {
            "__name__": "penstock_program",
            "spark": spark,
            "folder": str(folder),
        }
        exec(_HEADER, self._names)  # noqa: S102 - our own text
        if shape.prelude:
            self.define(shape.prelude)

    def fresh(self, letter: str) -> str:
        """A name that is not taken."""
        self._made += 1
        return f"{letter}{self._made}"

    def value(self, name: str) -> Any:
        """The thing behind a name."""
        return self._names[name]

    def schema(self, number: str) -> StructType:
        """The columns of frame `number` as Spark has them."""
        found: StructType = self._names[f"d{number}"].schema
        return found

    def define(self, text: str) -> None:
        """Execute what both sides share."""
        exec(text, self._names)  # noqa: S102 - our own text
        self.text.shared.append(text)

    def table(self, schema: StructType | None = None, rows: int | None = None) -> str:
        """A new frame over a random table; its number."""
        number = self.fresh("")
        source = self.shape.source if schema is None else ""
        if schema is None:
            schema = random_schema(self.draw, odd=self.shape.odd, twins=self.shape.twins)
        if rows is None:
            rows = self.draw.choice(self.shape.rows)
        partitions = self.draw.choice(self.shape.partitions)
        self.define(
            f"t{number} = rows_of(spark, {spelled(schema)}, {self.draw.randrange(10**6)}, {rows}, {partitions})"
        )
        ours, theirs = (source.format(d=f"t{number}", side=side) or f"t{number}" for side in ("ours", "theirs"))
        self.step(number, f"penstock.fromDataFrame({ours})", theirs)
        return number

    def step(self, number: str, ours: str, theirs: str) -> bool:
        """Make frame `number` anew by an expression on each side; False where the step is left out.

        `{s}` and `{d}` in the texts stand for the frame as it is.
        """
        our_line = f"s{number} = {ours.replace('{s}', f's{number}')}"
        their_line = f"d{number} = {theirs.replace('{d}', f'd{number}')}"
        kept = {name: self._names.get(name) for name in (f"s{number}", f"d{number}")}
        mine, other = self._error(our_line), self._error(their_line)
        if mine is None and other is None:
            self.text.ours.append(our_line)
            self.text.theirs.append(their_line)
            self._compare_schemas(number, our_line)
            return True
        self._names.update(kept)
        self._judge(our_line, their_line, mine, other)
        return False

    def both_run(self, ours: str, theirs: str) -> bool:
        """Execute a line on each side, both to the end; False where it was refused."""
        mine, other = self._error(ours), self._error(theirs)
        if mine is None and other is None:
            self.text.ours.append(ours)
            self.text.theirs.append(theirs)
            return True
        self._judge(ours, theirs, mine, other)
        return False

    def prepared(self, line: str) -> bool:
        """Execute a line of PySpark's that makes files for both sides; False where Spark refuses it."""
        error = self._error(line)
        self.text.theirs.append(line if error is None else f"# Spark refuses {line!r}: {line_of(error)}"[:400])
        return error is None

    def answers(self, ours: str, theirs: str) -> tuple[Any, Any]:
        """The values of the last line on each side, or its errors."""
        self.text.ours.append(f"answer = {ours}")
        self.text.theirs.append(f"answer = {theirs}")
        return self._answer(ours), self._answer(theirs)

    def again(self, theirs: str) -> Any:
        """The value of PySpark's once more."""
        return self._answer(theirs)

    def close(self) -> None:
        """Release what is persisted."""
        for name, thing in list(self._names.items()):
            if name[0] in "sd" and name[1:].isdigit():
                with suppress(Exception):
                    thing.unpersist()

    def _answer(self, text: str) -> Any:
        try:
            return eval(text, self._names)  # noqa: S307 - our own text
        except Exception as error:  # noqa: BLE001 - which errors are right is what is being asked
            return error

    def _error(self, line: str) -> Exception | None:
        try:
            exec(line, self._names)  # noqa: S102 - our own text
        except Exception as error:  # noqa: BLE001 - which errors are right is what is being asked
            return error
        return None

    def _judge(self, our_line: str, their_line: str, mine: Exception | None, other: Exception | None) -> None:
        said = f"ours: {line_of(mine)}; theirs: {line_of(other)}"
        reason = documented(mine, other)
        is_fine = mine is not None and other is not None and is_clear(mine)
        if not (is_fine or reason):
            self.text.ours.append(our_line)
            self.text.theirs.append(their_line)
            raise StepError("UNCLEAR" if mine is not None else "WRONG", f"{our_line!r}: {said}")
        self.notes.append(reason or "refused alike")
        self.text.ours.append(f"# {reason or 'refused on both sides'}: {our_line!r}: {said}"[:400])

    def _compare_schemas(self, number: str, where: str) -> None:
        stream, frame = self._names[f"s{number}"], self._names[f"d{number}"]
        if not self.differences and (found := schema_difference(struct_type(stream.schema), frame.schema)):
            self.differences.append(f"schema behind {where!r}: {found}")


def schema_difference(ours: StructType, theirs: StructType) -> str:
    """Empty where names, types and nullability are the same on all levels."""
    mine, other = [_plain(schema) for schema in (ours, theirs)]
    if mine == other:
        return ""
    pairs = [(one, two) for one, two in zip(mine, other, strict=False) if one != two]
    if not pairs:
        return f"ours {mine}, theirs {other}"
    return "; ".join(f"ours {one}, theirs {two}" for one, two in pairs)


def _plain(schema: StructType) -> list[str]:
    return [f"{one.name}: {spelled(one.dataType)}, {one.nullable}" for one in schema.fields]
