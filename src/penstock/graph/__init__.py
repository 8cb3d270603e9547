# SPDX-License-Identifier: Apache-2.0
"""JobGraph to ExecutionGraph, pipelined regions and slot needs: pure."""

from penstock.graph.ddl import parse_ddl
from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.execution_graph import ExecutionGraph
from penstock.graph.execution_state import ExecutionEvent, ExecutionLifecycle, ExecutionState, IllegalTransitionError
from penstock.graph.explanation import explain_graph
from penstock.graph.job_graph import (
    RESULT_EDGE,
    Combine,
    Exchange,
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    RowSummary,
    Source,
    Summary,
)
from penstock.graph.regions import Region, refuse_deadlocks, regions, slots_needed

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
    "Operator",
    "OutputDeployment",
    "Region",
    "RowSummary",
    "Source",
    "Summary",
    "TaskDeployment",
    "explain_graph",
    "parse_ddl",
    "refuse_deadlocks",
    "regions",
    "slots_needed",
]
