# SPDX-License-Identifier: Apache-2.0
"""The commands to an environment: by the JobMaster that owns it, as a stream of instructions, or by a call.

A task may call for a release and for an update. Other commands may be called for only if no JobMaster owns the
environment: in tests, and by tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from penstock.errors import ProtocolError
from penstock.link.wire import Done, Plain, from_wire, to_wire
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor
from penstock.shuffle.actions import Action
from penstock.shuffle.requests import Request

OP = "op"
"""The key of an instruction that names the command; the others are the command's fields."""
NUMBER = "number"
"""The key of its number; no command has a field of this name."""


@dataclass(frozen=True, slots=True)
class Updated:
    """The answer whether a gate that is open now was waiting for it."""

    updated: bool


@dataclass(frozen=True, slots=True)
class CancelTask(Request[Done]):
    """Tell the task that works on this attempt to stop; `is_unwanted`: its rows are not read, and it ends well."""

    attempt: AttemptId
    cause: str
    is_unwanted: bool = False


@dataclass(frozen=True, slots=True)
class UpdatePartitionInfo(Request[Updated]):
    """The real producer of unknown channels of a consumer, this attempt."""

    attempt: AttemptId
    descriptor: ShuffleDescriptor


@dataclass(frozen=True, slots=True)
class ReleasePartitions(Request[Done]):
    """These partitions are not needed any more."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class ExpirePartitions(Request[Done]):
    """The leases of these partitions have run out."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class ReleaseJob(Request[Done]):
    """A job is over: nothing that it has here is needed any more."""

    job: str


@dataclass(frozen=True, slots=True)
class TaskAction(Request[Done]):
    """Pass an action on to the task that works on this attempt, in the order in which actions were said."""

    attempt: AttemptId
    action: Action


@dataclass(frozen=True, slots=True)
class PauseSources(Request[Done]):
    """Some gate of a job has raised its flag, so its sources pause; or none has any more, and they go on."""

    job: str
    is_raised: bool


@dataclass(frozen=True, slots=True)
class Shutdown(Request[Done]):
    """Give everything up and end."""


Command = (
    CancelTask
    | UpdatePartitionInfo
    | ReleasePartitions
    | ExpirePartitions
    | ReleaseJob
    | Shutdown
    | TaskAction
    | PauseSources
)

COMMANDS: dict[str, type[Command]] = {kind.METHOD: kind for kind in get_args(Command)}
"""Every command, by its name as a call."""


def instruction(command: Command, number: int = 0) -> Plain:
    """A command as the JobMaster sends it; with its number where it comes again over the next connection."""
    numbered = {NUMBER: number} if number else {}
    return {OP: command.METHOD, **numbered, **to_wire(command)}


def number_of(plain: Plain) -> int:
    """The number of an instruction, 0 where it has none; raises ProtocolError."""
    number = plain.get(NUMBER, 0)
    if type(number) is not int or number < 0:
        raise ProtocolError(f"the number of an instruction can't be {number!r:.200}")
    return number


def read_instruction(plain: Plain) -> Command:
    """Inverse of `instruction`; raises ProtocolError, for an unknown command too."""
    kind = COMMANDS.get(str(plain.get(OP)))
    if kind is None:
        raise ProtocolError(f"the JobMaster gives an instruction {plain.get(OP)!r}: this environment knows none such")
    return from_wire(kind, {name: value for name, value in plain.items() if name not in (OP, NUMBER)})
