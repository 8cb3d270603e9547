# SPDX-License-Identifier: Apache-2.0
"""The calls a task makes to its environment itself (`local.*`); everything else is relayed to the JobMaster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.environment.hybrid_port import HybridPort, WriterRequest
from penstock.environment.inputs import GatePort, GateRequest
from penstock.environment.outputs import WriterPort
from penstock.environment.results import FileRequest
from penstock.partition.stored import Layout
from penstock.shuffle import AttemptId, EndOfPartition, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.shuffle.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.environment.host import Host
    from penstock.environment.session import TaskSession

Message = dict[str, Any]


def _partition(message: Message) -> PartitionId:
    return PartitionId.from_wire(tuple(message["partition"]))


def open_writer(host: Host, session: TaskSession, message: Message) -> Message:
    """Register a pipelined or hybrid partition and grant its first segments."""
    port = int(message["port"])
    session.owners.add(AttemptId.from_wire(tuple(message["attempt"])))
    kind = PartitionKind.from_label(str(message["kind"]))
    count, broadcast = int(message["subpartitions"]), bool(message["broadcast"])
    request = WriterRequest(port, _partition(message), count, broadcast, kind)
    if kind.is_hybrid:
        hybrid = session.writers[port] = HybridPort(host, session, session.holdings, request)
        return {"packed": hybrid.is_packed}
    session.writers[port] = WriterPort(host, session, session.holdings, request)
    return {"packed": False}


def finish_writer(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001 - one shape for all
    """The partition is complete."""
    session.writers.pop(int(message["port"])).finish()
    return {}


def fail_writer(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """The producer gives the partition up."""
    session.writers.pop(int(message["port"])).fail(str(message["cause"]))
    return {}


def open_gate(host: Host, session: TaskSession, message: Message) -> Message:
    """Open a gate and request what is known of its channels."""
    port = int(message["port"])
    attempt = AttemptId.from_wire(tuple(message["attempt"]))
    session.owners.add(attempt)
    channels = tuple(
        (ShuffleDescriptor.from_wire(tuple(wire)), int(first), int(count))
        for wire, first, count in message["channels"]
    )
    gate = session.gates[port] = GatePort(host, session, session.holdings, GateRequest(port, attempt, channels))
    gate.open()
    for descriptor in host.take_updates(attempt):
        gate.update(descriptor)
    return {}


def close_gate(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """Close a gate; its channels are cancelled."""
    gate = session.gates.pop(int(message["port"]), None)
    if gate is not None:
        gate.close()
    return {}


async def open_result(host: Host, session: TaskSession, message: Message) -> Message:
    """Register a blocking partition; the answer says where to write its files, and what to collect in memory."""
    layout = Layout(message["layout"])
    request = FileRequest(_partition(message), int(message["subpartitions"]), layout, int(message["buffer"]))
    session.owners.add(AttemptId.from_wire(tuple(message["attempt"])))
    files, granted = await host.results.open(session, request)
    return {"paths": [str(path) for path in files.paths], "buffer": granted}


def finish_result(host: Host, session: TaskSession, message: Message) -> Message:
    """The files are complete."""
    partition = _partition(message)
    ends = [EndOfPartition(int(rows), int(size), int(checksum)) for rows, size, checksum in message["ends"]]
    host.results.finish(partition, ends)
    session.results.discard(partition)
    host.consumable(partition)
    return {}


def fail_result(host: Host, session: TaskSession, message: Message) -> Message:
    """The producer gives its result up."""
    partition = _partition(message)
    session.results.discard(partition)
    host.results.fail(partition, str(message["cause"]))
    return {}


def missing_file(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """A reader found that a file of a finished partition is gone; the answer is the error that says why."""
    raise host.results.missing(_partition(message), str(message["cause"]))


def release(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """Release partitions of this host."""
    host.registry.release([PartitionId.from_wire(tuple(wire)) for wire in message["partitions"]])
    return {}


def occupying(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """The partitions that hold memory or files here."""
    return {"partitions": [partition.to_wire() for partition in host.registry.occupying()]}


def update_partition_info(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """Replace an unknown producer."""
    consumer = AttemptId.from_wire(tuple(message["consumer"]))
    return {
        "updated": host.update_partition_info(consumer, ShuffleDescriptor.from_wire(tuple(message["descriptor"])))
    }


def statistics(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """Figures of this environment."""
    return dict(host.statistics())


def cancel_task(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """Tell a task of this host to stop, where no JobMaster does."""
    _refuse_if_owned(host)
    host.cancel_task(AttemptId.from_wire(tuple(message["attempt"])), str(message["cause"]))
    return {}


def expire(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """Let the leases of partitions run out, where no JobMaster does."""
    _refuse_if_owned(host)
    host.registry.expire([PartitionId.from_wire(tuple(wire)) for wire in message["partitions"]])
    return {}


def shut_down(host: Host, session: TaskSession, message: Message) -> Message:  # noqa: ARG001
    """End this environment, where no JobMaster owns it."""
    _refuse_if_owned(host)
    host.stopping.set()
    return {}


def _refuse_if_owned(host: Host) -> None:
    if host.control is not None:
        raise ProtocolError("this environment belongs to a JobMaster: only that may command it")


LOCAL_CALLS: dict[str, Callable[[Host, TaskSession, Message], Message | Awaitable[Message]]] = {
    "local.open_writer": open_writer,
    "local.finish_writer": finish_writer,
    "local.fail_writer": fail_writer,
    "local.open_gate": open_gate,
    "local.close_gate": close_gate,
    "local.open_result": open_result,
    "local.finish_result": finish_result,
    "local.fail_result": fail_result,
    "local.missing_file": missing_file,
    "local.release": release,
    "local.occupying": occupying,
    "local.update_partition_info": update_partition_info,
    "local.statistics": statistics,
    "local.cancel_task": cancel_task,
    "local.expire": expire,
    "local.shut_down": shut_down,
}
"""Every call, by name. One that waits is a coroutine; its answer comes when it is there."""
