# SPDX-License-Identifier: Apache-2.0
"""Places the islands of one DataFrame's plan: each is a lazy result of Penstock's, in the same plan.

Nothing runs here. What can't be translated is left out, and the islands are looked for again without it, so the rest
still finds its place. The new plan has the columns, types and nullability of the old one, or it is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.api.actions import dataframe_of, first_rows
from penstock.islands.finding import LEAST_BYTES, PAYING, TOO_FEW, Found, Island, find_islands
from penstock.islands.plan_nodes import Path, PlanNode, read_plan
from penstock.islands.translation import RefusedError, Translation
from penstock.spark.logical_plans import LogicalPlan, Part
from penstock.spark.python_stages import WorkerConf, refused_by
from penstock.spark.runtime import SparkRuntime, session_conf

_KEEPS_ROWS = ("Project", "SubqueryAlias", "View")
"""Nodes that give a row for each of their input, so a limit above them is one below them."""

_SHARED = ("WithCTE", "CTERelationRef", "UnionLoop", "UnionLoopRef")
"""Nodes that refer to others by number: a part of such a plan is none by itself."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan, what was found in it, and the frame with the islands placed; None where there are none."""

    plan: PlanNode
    found: Found
    frame: Any = None


def place(frame: Any, enough: int | None = None) -> Placed | None:
    """Place the islands of a DataFrame of which so many rows are enough; None for a stream. Raises PenstockError."""
    plan = LogicalPlan(frame)
    if plan.is_streaming:
        return None
    tree = read_plan(plan.json())
    settings = SparkRuntime.of(frame.sparkSession).settings()
    conf = session_conf(frame.sparkSession)
    shared = any(node.kind in _SHARED for node in tree)
    if why := refused_by(conf) or ("parts of it are read by several others" if shared else ""):
        return Placed(tree, Found((), {node.path: why for node in tree}))
    placing = _Placing(tree, plan, frame.sparkSession, WorkerConf.of(frame.sparkSession, conf), enough)
    refused: dict[Path, str] = {}
    must_pay = settings.acceleration.placed == PAYING
    while (found := find_islands(tree, settings.acceleration.placed, refused)).islands:
        few = [each for each in found.islands if must_pay and placing.reads_few(each)]
        if few:
            refused |= {each.root.path: TOO_FEW for each in few}
            continue
        try:
            parts = placing.parts(found)
        except RefusedError as refusal:
            if refusal.node.path in refused:
                raise
            refused[refusal.node.path] = refusal.why
            continue
        return Placed(tree, found, plan.replaced(parts))
    return Placed(tree, found)


@dataclass(frozen=True, slots=True)
class _Placing:
    tree: PlanNode
    plan: LogicalPlan
    spark: Any
    conf: WorkerConf
    enough: int | None

    def reads_few(self, island: Island) -> bool:
        """Tell whether Spark expects so few bytes in an island that a job of its own costs more than it saves."""
        return sum(self.plan.expected_bytes(leaf.path) for leaf in island.leaves) < LEAST_BYTES

    def parts(self, found: Found) -> dict[Path, Part]:
        """A lazy result for each island; those below come first, for others read them."""
        parts: dict[Path, Part] = {}
        for island in reversed(found.islands):
            rows = Translation(self.plan, island, self.conf, parts).rows()
            limit = _limit_above(self.tree, island.root.path, self.enough)
            steps = rows.steps if limit is None else first_rows(rows.steps, limit)
            parts[island.root.path] = Part(dataframe_of(steps, self.spark, "toDF"), rows.places(rows.output))
        return parts


def _limit_above(tree: PlanNode, path: Path, enough: int | None) -> int | None:
    """So many rows of each partition of a node are enough for what stands above it; None if all are needed."""
    above = [tree]
    for number in path:
        above.append(above[-1].children[number])
    for node in reversed(above[:-1]):
        if node.kind == "LocalLimit":
            own = node.fields["limitExpr"][0]
            return int(own["value"]) if own["class"].endswith(".Literal") else None
        if node.kind not in _KEEPS_ROWS:
            return None
    return enough
