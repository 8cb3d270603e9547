# SPDX-License-Identifier: Apache-2.0
"""PySpark's `F.window` and `F.session_window`, read out of the Column: the analyser would make a plan of them."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.sql.classic.column import Column

from penstock.errors import PlanError
from penstock.operators.intervals import microseconds
from penstock.operators.windows import WindowKey


def window_of(column: Any) -> WindowKey | None:
    """The window that a Column is, also under an alias; None for any other Column."""
    node = column._jc.node()  # noqa: SLF001 - PySpark has no public view of what a Column is
    name = None
    if _class_of(node) == "Alias":
        name, node = node.name().mkString("."), node.child()
    if _class_of(node) != "UnresolvedFunction" or node.functionName() not in ("window", "session_window"):
        return None
    found = _fixed(node) if node.functionName() == "window" else _session(node)
    return found if name is None else found.alias(str(name))


def column_of(column: Any) -> str | None:
    """The name of the column that a Column is; None where it is anything else."""
    node = column._jc.node()  # noqa: SLF001 - as above
    return str(node.sql()) if _class_of(node) == "UnresolvedAttribute" else None


def _fixed(node: Any) -> WindowKey:
    size, slide, offset = (
        _length(node, place, what) for place, what in ((1, "duration"), (2, "slide"), (3, "start"))
    )
    return WindowKey(_time(node), size or 0, slide or size or 0, offset or 0)


def _session(node: Any) -> WindowKey:
    gap = _length(node, 1, "gap")
    if not gap or gap < 0:
        raise PlanError("session_window: its gap must be longer than nothing")
    return WindowKey(_time(node), gap=gap, name="session_window")


def _length(node: Any, place: int, what: str) -> int | None:
    """An argument that is a length of time; None where there is none."""
    arguments = node.arguments()
    if place >= arguments.size():
        return None
    argument = arguments.apply(place)
    if _class_of(argument) != "Literal":
        raise PlanError(
            f"{node.functionName()}: its {what} is an expression, and windows have one length for all rows: give a "
            "text such as '10 minutes'"
        )
    return microseconds(argument.value(), f"{node.functionName()}: its {what}")


def _time(node: Any) -> object:
    """The time column: its name, or a Column that Spark's analyser reads."""
    argument = node.arguments().apply(0)
    if _class_of(argument) == "UnresolvedAttribute":
        return str(argument.sql())
    jvm: Any = SparkContext._jvm  # noqa: SLF001 - the way from a node back to a Column
    return Column(jvm.org.apache.spark.sql.Column(argument))


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())
