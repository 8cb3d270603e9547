# SPDX-License-Identifier: Apache-2.0
"""JobGraph to ExecutionGraph, pipelined regions and slot needs: pure."""

from penstock.graph.column_names import as_written
from penstock.graph.ddl import parse_ddl
from penstock.graph.deadlocks import refuse_ordered_sides, without_deadlocks
from penstock.graph.deployment import InputDeployment, OutputDeployment, TaskDeployment
from penstock.graph.execution_graph import ExecutionGraph
from penstock.graph.execution_state import ExecutionEvent, ExecutionLifecycle, ExecutionState
from penstock.graph.explanation import INTERNAL, columns_text, exchange_title, explain_graph
from penstock.graph.failover import JobView, Place, downstream_of, restart_set
from penstock.graph.job_graph import (
    RESULT_EDGE,
    Combine,
    Exchange,
    JobEdge,
    JobGraph,
    JobVertex,
    KeptBy,
    Operator,
    Resources,
    RowSummary,
    Source,
    Summary,
)
from penstock.graph.layouts import plain_schema, plain_type
from penstock.graph.nullability import (
    as_nullable,
    fields_of,
    merged_schema,
    merged_type,
    newly_nullable,
    same_but_nulls,
    with_fields,
    with_nulls_of,
)
from penstock.graph.regions import Region, regions, slots_needed
from penstock.graph.spark_footers import footer_of, named_by_spark, unreadable, unwritable
from penstock.graph.spark_types import (
    SESSIONS,
    collated,
    collation_of,
    has_sessions,
    holds_one_value,
    is_one_value,
    own_types,
    same_columns,
    shown_type,
    spark_type,
    type_json,
    type_text,
    with_sessions,
    with_spark_type,
)

__all__ = [
    "INTERNAL",
    "RESULT_EDGE",
    "SESSIONS",
    "Combine",
    "Exchange",
    "ExecutionEvent",
    "ExecutionGraph",
    "ExecutionLifecycle",
    "ExecutionState",
    "InputDeployment",
    "JobEdge",
    "JobGraph",
    "JobVertex",
    "JobView",
    "KeptBy",
    "Operator",
    "OutputDeployment",
    "Place",
    "Region",
    "Resources",
    "RowSummary",
    "Source",
    "Summary",
    "TaskDeployment",
    "as_nullable",
    "as_written",
    "collated",
    "collation_of",
    "columns_text",
    "downstream_of",
    "exchange_title",
    "explain_graph",
    "fields_of",
    "footer_of",
    "has_sessions",
    "holds_one_value",
    "is_one_value",
    "merged_schema",
    "merged_type",
    "named_by_spark",
    "newly_nullable",
    "own_types",
    "parse_ddl",
    "plain_schema",
    "plain_type",
    "refuse_ordered_sides",
    "regions",
    "restart_set",
    "same_but_nulls",
    "same_columns",
    "shown_type",
    "slots_needed",
    "spark_type",
    "type_json",
    "type_text",
    "unreadable",
    "unwritable",
    "with_fields",
    "with_nulls_of",
    "with_sessions",
    "with_spark_type",
    "without_deadlocks",
]
