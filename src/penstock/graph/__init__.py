# SPDX-License-Identifier: Apache-2.0
"""JobGraph to ExecutionGraph, pipelined regions and slot needs: pure."""

from penstock.graph.ddl import parse_ddl
from penstock.graph.deadlocks import without_deadlocks
from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.execution_graph import ExecutionGraph
from penstock.graph.execution_state import ExecutionEvent, ExecutionLifecycle, ExecutionState, IllegalTransitionError
from penstock.graph.explanation import explain_graph
from penstock.graph.failover import JobView, Place, downstream_of, restart_set
from penstock.graph.job_graph import (
    RESULT_EDGE,
    Combine,
    Exchange,
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    Resources,
    RowSummary,
    Source,
    Summary,
)
from penstock.graph.regions import Region, regions, slots_needed

__all__ = [
    "RESULT_EDGE",
    "Combine",
    "Exchange",
    "ExecutionEvent",
    "ExecutionGraph",
    "ExecutionLifecycle",
    "ExecutionState",
    "IllegalTransitionError",
    "InputDeployment",
    "JobEdge",
    "JobGraph",
    "JobVertex",
    "JobView",
    "Operator",
    "OutputDeployment",
    "Place",
    "Region",
    "Resources",
    "RowSummary",
    "Source",
    "Summary",
    "TaskDeployment",
    "downstream_of",
    "explain_graph",
    "parse_ddl",
    "regions",
    "restart_set",
    "slots_needed",
    "without_deadlocks",
]
