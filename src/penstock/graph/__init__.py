# SPDX-License-Identifier: Apache-2.0
"""JobGraph to ExecutionGraph, pipelined regions and slot needs: pure."""

from penstock.graph.ddl import parse_ddl
from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.execution_graph import ExecutionGraph, refuse_deadlocks, regions, slots_needed
from penstock.graph.execution_state import ExecutionEvent, ExecutionLifecycle, ExecutionState, IllegalTransitionError
from penstock.graph.explanation import explain_graph
from penstock.graph.job_graph import RESULT_EDGE, Exchange, JobEdge, JobGraph, JobVertex, Operator, Source

__all__ = [
    "RESULT_EDGE",
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
    "Source",
    "TaskDeployment",
    "explain_graph",
    "parse_ddl",
    "refuse_deadlocks",
    "regions",
    "slots_needed",
]
