# SPDX-License-Identifier: Apache-2.0
"""Plans the DataFrames that a job reads before the job takes any slot.

A DataFrame may itself be the lazy end of another Penstock pipeline. Planning it runs that pipeline. Were it left
to the job, its waiting tasks would hold the slots that the inner pipeline needs, and neither would go on.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

_ADAPTIVE = "AdaptiveSparkPlanExec"
_SCAN = "BatchScanExec"
_PYTHON_TABLE = "PythonTable"
"""The table of a Python data source, ours among them."""


def plan_scans(frame: DataFrame) -> None:
    """Plan the data source scans of a DataFrame; what a source raises while planning comes out here."""
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - PySpark has no public view of plans
    for leaf in _leaves(execution.executedPlan()):
        if _class_name(leaf) == _SCAN and _class_name(leaf.table()) == _PYTHON_TABLE:
            leaf.inputPartitions()


def _leaves(plan: Any) -> list[Any]:
    if _class_name(plan) == _ADAPTIVE:
        plan = plan.inputPlan()
    leaves = plan.collectLeaves()
    found: list[Any] = []
    for position in range(leaves.size()):
        leaf = leaves.apply(position)
        found += _leaves(leaf) if _class_name(leaf) == _ADAPTIVE else [leaf]
    return found


def _class_name(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())
