# SPDX-License-Identifier: Apache-2.0
"""Typed messages as control messages: every one comes back as it was, and what is not one says which field."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from penstock.errors import FailureKind, ProtocolError
from penstock.link import calls, commands, master
from penstock.link.control import pack, unpack
from penstock.link.figures import ChannelFigures, PartitionFigures, UseFigures, UseKind
from penstock.link.questions import Asked
from penstock.link.wire import from_wire, to_wire
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    EndOfPartition,
    PartitionId,
    PartitionKind,
    ShuffleDescriptor,
)
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint
from penstock.shuffle.requests import Request

ATTEMPT = AttemptId("j1", 2, 3, 4)
PARTITION = PartitionId(DatasetId("j1", 0), 5, 6)
PLACE = ShuffleDescriptor(PARTITION, "local", PartitionKind.HYBRID_FULL, "env-1", "tcp://h:1", "", False)
SAMPLES: dict[Any, Any] = {
    int: 7,
    str: "text",
    bool: True,
    bytes: b"\x00\xff",
    object: ("plain", 1),
    AttemptId: ATTEMPT,
    PartitionId: PARTITION,
    PartitionKind: PartitionKind.PIPELINED_BOUNDED,
    ShuffleDescriptor: PLACE,
    ShuffleDescriptor | None: PLACE,
    tuple[ShuffleDescriptor, ...]: (PLACE, PLACE),
    tuple[PartitionFigures, ...]: (PartitionFigures("local", "blocking", "FINISHED", 3, 1 << 40),),
    tuple[ChannelFigures, ...]: (ChannelFigures(ATTEMPT, 1, 2, {"credit": 2.0}),),
    tuple[UseFigures, ...]: (
        UseFigures(UseKind.DISK, "/data1", {"read_bytes": 2.0}),
        UseFigures(UseKind.WORKER, "pid 7", {"seconds": 2.0}, ATTEMPT),
    ),
    PartitionId | None: None,
    tuple[PartitionId, ...]: (PARTITION, PARTITION),
    tuple[str, ...]: (),
    tuple[int, ...]: (3, 1),
    tuple[int, int, int]: (5, 6, 1 << 40),
    tuple[ChannelDescriptor, ...]: (ChannelDescriptor(PLACE, 1, 2),),
    tuple[EndOfPartition, ...]: (EndOfPartition(1, 2, 1 << 63), EndOfPartition(0, 0, 0)),
    tuple[tuple[AttemptId, dict[str, float]], ...]: ((ATTEMPT, {"rows": 1.5}),),
    dict[str, float]: {"rows": 2.0},
    dict[int, tuple[int, ...]]: {0: (1, 2), -1: ()},
    dict[int, int]: {1: 1 << 63},
    Action: StopSource(),
    Asked: Asked(9, (3, 7)),
    FailureKind: FailureKind.NO_STORAGE,
    master.TaskEnd: master.TaskEnd.FAILED,
}
"""A value for each type of field there is."""
REQUESTS = [
    *calls.CALLS.values(),
    *commands.COMMANDS.values(),
    *master.RELAYED.values(),
    *(master.AttachEnvironment, master.Heartbeat),
    *(master.PartitionConsumable, master.TaskLost),
]


def sample(kind: type[Any]) -> Any:
    """A message with a value in each field."""
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: SAMPLES[hints[field.name]] for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_every_request_and_answer_comes_back_as_it_was(kind: type[Request[Any]]) -> None:
    """Through the bytes of a control message, question and answer."""
    for message in (sample(kind), sample(kind.ANSWER)):
        assert from_wire(type(message), unpack(pack(to_wire(message)))) == message


def test_no_two_requests_travel_by_one_name() -> None:
    """A name on the wire means one request, whoever answers it."""
    names = [kind.METHOD for kind in REQUESTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", commands.COMMANDS.values(), ids=lambda kind: kind.__name__)
def test_every_command_is_an_instruction_too(kind: type[commands.Command]) -> None:
    """As the JobMaster sends it."""
    command = sample(kind)
    assert commands.read_instruction(unpack(pack(commands.instruction(command)))) == command


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ({"buffer": 1}, "WriterOpened is not complete"),
        ({"packed": True, "buffer": "1"}, "WriterOpened.buffer .* must be int"),
        ({"packed": True, "buffer": True}, "WriterOpened.buffer .* must be int"),
        ({"packed": True, "folder": b"x"}, "WriterOpened.folder .* must be str"),
        ({"packed": True, "gate": 2}, "WriterOpened has no field gate"),
    ],
)
def test_what_is_not_the_message_says_which_field(plain: dict[str, Any], told: str) -> None:
    """Wrong, missing and unknown fields are protocol errors."""
    with pytest.raises(ProtocolError, match=told):
        from_wire(calls.WriterOpened, plain)


@pytest.mark.parametrize("wrong", [None, 1, "j1-e0", ("j1-e0", 5), ("j1-e0", "x", 6), {"dataset": "j1-e0"}])
def test_an_id_of_another_shape_is_refused(wrong: object) -> None:
    """Within a list as well."""
    for plain in ({"partition": wrong, "cause": ""}, {"partition": [wrong], "cause": ""}):
        with pytest.raises(ProtocolError, match=r"FailWriter\.partition"):
            from_wire(calls.FailWriter, plain)


@pytest.mark.parametrize("field", ["state", "failure"])
def test_a_word_that_is_none_of_those_agreed_on_is_refused(field: str) -> None:
    """The end of a task and its meaning are words of a list: nobody decides by others."""
    plain = to_wire(sample(master.TaskFinished)) | {field: "ValueError"}
    with pytest.raises(ProtocolError, match=rf"TaskFinished\.{field} can't be 'ValueError'"):
        from_wire(master.TaskFinished, plain)


def test_an_unknown_instruction_is_an_error() -> None:
    """It names the instruction; nothing is skipped."""
    with pytest.raises(ProtocolError, match="'checkpoint'"):
        commands.read_instruction({"op": "checkpoint", "number": 1})
    with pytest.raises(ProtocolError, match="None"):
        commands.read_instruction({})


@pytest.mark.parametrize(
    "action", [TriggerCheckpoint(b"\x00\xff"), CheckpointCompleted(1), CheckpointGivenUp(2), StopSource(goes_on=True)]
)
def test_every_action_reaches_its_task_as_it_was(action: Action) -> None:
    """Each kind has a name on the wire."""
    told = commands.TaskAction(ATTEMPT, action)
    assert commands.read_instruction(unpack(pack(commands.instruction(told)))) == told


def test_an_unknown_action_is_an_error() -> None:
    """It names the action."""
    plain = commands.instruction(commands.TaskAction(ATTEMPT, StopSource()))
    for wrong in (["Restart", []], ["StopSource", [1]], "StopSource", ["StopSource"]):
        with pytest.raises(ProtocolError, match=r"TaskAction\.action"):
            commands.read_instruction({**plain, "action": wrong})


def test_a_deployment_says_its_attempt() -> None:
    """An environment reads no more than that of it."""
    assert master.Registered().attempt is None
    assert master.Registered((ATTEMPT.to_wire(), (), ())).attempt == ATTEMPT
    with pytest.raises(ProtocolError, match="deployment"):
        _ = master.Registered(5).attempt
