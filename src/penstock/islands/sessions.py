# SPDX-License-Identifier: Apache-2.0
"""`penstock.accelerate`: from then on the actions of a session's DataFrames run as far as they can through Penstock.

A plan without Python costs a call to the JVM or two. Whatever fails before anything runs (an unknown node, a setting,
too few slots) leaves the action to Spark, and the report says why. Once the action runs, its failure is the action's:
nothing runs a second time in Spark.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.api.known_arguments import suggests_arguments
from penstock.errors import SettingError
from penstock.islands.placement import Placed, place
from penstock.islands.report import AccelerationReport, ActionRecord, drawn, left_stages
from penstock.spark.checks import refuse_connect, refuse_stopped
from penstock.spark.dataframe_actions import look, look_no_more, looker, unseen
from penstock.spark.frame_failures import cause_of
from penstock.spark.hints import PenstockWarning
from penstock.spark.logical_plans import PythonPatterns
from penstock.spark.user_thread import user_place

if TYPE_CHECKING:
    from penstock.spark.user_types import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
_LOWEST = (4, 3)
"""The first PySpark whose worker takes and gives Arrow batches, which is what stages are built on."""


class AcceleratedSession:
    """One session: what looks at its actions, and what it has seen."""

    def __init__(self, spark: Any) -> None:
        self._patterns = PythonPatterns(spark)
        self.report = AccelerationReport()

    def around(self, frame: Any, action: str, enough: int | None, run: Any) -> Any:
        """Run an action, over the frame with its islands placed or over the frame as it is."""
        if not self._patterns.are_in(frame):
            return run(frame)
        placed, why = self._placed(frame, enough)
        began, error = time.monotonic(), ""
        try:
            return run(frame if placed is None or placed.frame is None else placed.frame)
        except Exception as failure:
            # A DataFrame that Penstock read is part of the action: its error is Spark's, as it is without us.
            own = None if placed is None or placed.frame is None else cause_of(str(failure))
            error = type(own or failure).__name__
            if own is not None:
                raise own from None
            raise
        finally:
            self.report.add(_record(action, placed, why, time.monotonic() - began, error))

    @staticmethod
    def _placed(frame: Any, enough: int | None) -> tuple[Placed | None, str]:
        """The islands placed; none, and why, where anything is in the way."""
        try:
            placed = place(frame, enough)
            if placed is not None and placed.frame is not None and placed.frame.schema != frame.schema:
                return None, f"its columns would be {placed.frame.schema.simpleString()}"
        except Exception as error:  # noqa: BLE001 - nothing has run, so whatever it is the action is left to Spark
            _LOG.info("an action is left to Spark", exc_info=True)
            return None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return placed, "" if placed is not None else "it is a stream without an end"


@suggests_arguments
def accelerate(spark: SparkSession, on: bool = True) -> None:
    """From now on run Python stages of this session's DataFrames, and the exchanges between them, through Penstock.

    Programs stay as they are: each action has its plan looked at, what Penstock can do takes its place in it, and all
    else stays Spark's. With `on=False` no action is looked at any more. A session of Spark Connect, and a Spark
    before 4.3, are left alone, with a warning that says so.
    """
    if not on:
        look_no_more(spark)
        return
    if why := _not_accelerated(spark):
        warnings.warn(f"this session is not accelerated: {why}", PenstockWarning, stacklevel=2)
        return
    refuse_stopped(spark)
    if looker(spark) is None:
        look(spark, AcceleratedSession(spark).around)


@suggests_arguments
@contextmanager
def accelerated(spark: SparkSession) -> Iterator[None]:
    """`accelerate` for a `with` block."""
    was = looker(spark)
    accelerate(spark)
    try:
        yield
    finally:
        if was is None:
            accelerate(spark, on=False)


@suggests_arguments
def acceleration(spark: SparkSession) -> AccelerationReport:
    """What ran where since `accelerate`: the actions with Python in them, those that took longest first."""
    found = looker(spark)
    session = getattr(found, "__self__", None)
    return session.report if isinstance(session, AcceleratedSession) else AccelerationReport()


@suggests_arguments
def explain(df: DataFrame) -> None:
    """Print a DataFrame's plan with each node marked: runs in Penstock, or in Spark and why. Runs nothing."""
    if why := _not_accelerated(df.sparkSession):
        print(f"all of it is Spark's: {why}")  # noqa: T201
        return
    with unseen():
        placed = place(df)
    print("a stream without an end is Spark's" if placed is None else drawn(placed.plan, placed.found))  # noqa: T201


def _not_accelerated(spark: Any) -> str:
    """Why a session can't be accelerated; empty if it can."""
    try:
        refuse_connect(spark)
    except SettingError as error:
        return str(error)
    is_old = tuple(int(part) for part in spark.version.split(".")[:2]) < _LOWEST
    return f"acceleration needs Spark 4.3 or later, and this is {spark.version}" if is_old else ""


def _record(action: str, placed: Placed | None, why: str, seconds: float, error: str) -> ActionRecord:
    place_ = user_place()
    if placed is None:
        return ActionRecord(action, place_, 0, 0, (why,), seconds, error)
    islands = placed.found.islands
    functions, exchanges = (sum(getattr(island, part) for island in islands) for part in ("functions", "exchanges"))
    return ActionRecord(action, place_, functions, exchanges, left_stages(placed.plan, placed.found), seconds, error)
