# SPDX-License-Identifier: Apache-2.0
"""The differences from PySpark that pages name, as patterns of the errors that show them.

Each row has a pattern of an error's text, whose error it is, and the page's words for it. A refusal that no row
knows is a finding.
"""

from __future__ import annotations

import re

from penstock.errors import PenstockError
from penstock.spark.function_errors import FunctionError

_OURS = (
    (r"is a variant in parts", "variants in parts are read by Spark"),
    (r"frames have no variants", "frames have no variants"),
    (r"cannot be grouped by", "keys are plain columns"),
    (r"whose branches are the same stream", "a stream is not united with itself"),
    (r"was truncated converting|declared \w+ and the frame has", "a frame's values must fit the declared type"),
    (r"persist the stream before broadcast", "a broadcast stream is not persisted"),
    (r"the function returned columns", "columns of a function go by name"),
    (r"would be in the result twice", "a name on both sides of a join is refused"),
    (r"cogroup: keys must have the same type", "keys of a cogroup have the same types"),
    (
        r"Arrow has no|is not supported|not supported by|mapInArrow can compute|no Arrow form",
        "expressions that Arrow lacks are refused",
    ),
    (r"min and max of arrays and structs|has no order|can't be ordered", "nested types have no order"),
    (r"are not cast to|no sum of|not of numbers", "aggregates cast no strings"),
    (r"task slots|slots are needed|needs \d+ slots", "a pipelined plan needs its slots at once"),
    (r"is a map: make a list", "explode takes lists"),
    (r"does not fit its type|cannot be read as|is not a ", "what does not fit its type fails the job"),
    (r"which JSON has as base64", "JSON has bytes as base64"),
    (r"JSON is not read into maps", "JSON is not read into maps"),
    (r"is no time of the form", "a text's time has an offset of hours and minutes"),
    (r"may not be null|NOT NULL|is not nullable", "a null where none may be is refused"),
)
_THEIRS = (
    (r"nulls in input cannot be viewed as non-nullable", "PySpark cannot collect its own maps"),
    (r"cannot serialize \{'type'.* of type <class 'dict'>", "PySpark takes no vector back as a frame has it"),
    (r"RESULT_COLUMN_TYPES_MISMATCH.*tz=", "PySpark refuses the time zone that it gave itself"),
    (r"NonExistentTimeError|AmbiguousTimeError", "pandas has no clock for an hour that a time zone left out"),
    (
        r"NullPointerException|ClassCastException|INTERNAL_ERROR|MatchError|java.lang.AssertionError",
        "Spark fails inside",
    ),
    (
        r"UNRESOLVED_COLUMN.*\x60|INVALID_ATTRIBUTE_NAME_SYNTAX|INVALID_EXTRACT_BASE_FIELD_TYPE",
        "names are exact, with dots too",
    ),
    (r"AMBIGUOUS_REFERENCE|COLUMN_ALREADY_EXISTS", "names are exact: case counts"),
)


_OF_ROWS = re.compile(r"\bValuesError: |\bSchemaError: \w+\(\w+\): ")
"""Errors of values, and of batches and frames that a function gave."""
_TELLING = re.compile(r"[\w.]*(Error|Exception|Invalid|Interrupt|NotImplemented)(: | \[|$)")


def line_of(error: Exception | None) -> str:
    """The line of an error that says most."""
    if error is None:
        return "no error"
    lines = [re.sub(r"^(: |Caused by: )", "", line.strip()) for line in str(error).splitlines() if line.strip()] or [
        "no message"
    ]
    telling = [line for line in lines if _TELLING.match(line) and "An exception was thrown" not in line]
    return f"{type(error).__name__}: {(telling or lines[:1])[-1]}"[:500]


def is_clear(error: Exception) -> bool:
    """Tell whether an error is Penstock's, PySpark's own, or Python's word about an argument, and says something."""
    is_ours = isinstance(error, PenstockError) or type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    return (is_ours or type(error) is TypeError) and bool(str(error).strip())


def left_out(ours: object, action: str, program: str) -> bool:
    """Tell whether an error of a function or a value may come here only: Spark needs no row of it, or not all."""
    is_of_rows = isinstance(ours, FunctionError) or bool(_OF_ROWS.search(str(ours)))
    return is_of_rows and ("isEmpty" in action or ".limit(0)" in program)


def documented(ours: Exception | None, theirs: Exception | None) -> str:
    """The page's words for a difference, or nothing."""
    if ours is not None and theirs is None:
        return next((words for pattern, words in _OURS if re.search(pattern, str(ours))), "")
    if theirs is not None and ours is None:
        return next((words for pattern, words in _THEIRS if re.search(pattern, str(theirs), re.DOTALL)), "")
    return ""
