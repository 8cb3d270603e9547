# SPDX-License-Identifier: Apache-2.0
"""The descriptors of a subtask's inputs and outputs, out of the graph's edges and its deployment."""

from __future__ import annotations

from penstock.errors import PlanError, SchemaError
from penstock.graph import RESULT_EDGE, InputDeployment, JobGraph, JobVertex, OutputDeployment
from penstock.record import PartitionerSpec
from penstock.shuffle import ChannelDescriptor, InputGateDescriptor, PartitionDescriptor, ResultPartitionDescriptor


def exchange_of(graph: JobGraph, edge: int) -> PartitionerSpec:
    """The way of an edge's rows to their consumers; raises PlanError if a task can't build it."""
    if edge == RESULT_EDGE:
        return PartitionerSpec("forward")
    spec = graph.edge(edge).exchange
    if not isinstance(spec, PartitionerSpec):
        raise PlanError(f"edge {edge} has an exchange of type {type(spec).__name__}, a task builds a PartitionerSpec")
    return spec


def result_partition(graph: JobGraph, vertex: JobVertex, output: OutputDeployment) -> ResultPartitionDescriptor:
    """The partition that a subtask writes for one output; raises SchemaError if edge and vertex do not fit."""
    identity = output.descriptor.partition
    schema = vertex.schema
    broadcast = False
    if output.edge != RESULT_EDGE:
        edge = graph.edge(output.edge)
        broadcast = edge.is_broadcast
        if edge.summary is not None:
            schema = edge.schema
        elif not edge.schema.equals(schema):
            raise SchemaError(f"edge {edge.id} carries ({edge.schema}), {vertex.name} gives ({schema})")
    partition = PartitionDescriptor(
        identity.dataset, identity.index, output.descriptor.kind, output.subpartitions, broadcast
    )
    return ResultPartitionDescriptor(partition, output.descriptor, schema)


def input_gate(graph: JobGraph, deployed: InputDeployment) -> InputGateDescriptor:
    """The gate that a subtask reads one of its inputs by."""
    edge = graph.edge(deployed.edge)
    channels = tuple(ChannelDescriptor(*channel) for channel in deployed.channels)
    return InputGateDescriptor(edge.id, edge.schema, channels, deployed.await_confirmation)
