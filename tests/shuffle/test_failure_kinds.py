# SPDX-License-Identifier: Apache-2.0
"""Each error says what it means that a task has failed with it."""

from __future__ import annotations

import penstock.checkpoint.errors
import penstock.errors
from penstock.errors import FailureKind, PenstockError

KINDS = {
    FailureKind.CAUSE: {
        "ArithmeticOverflowError",
        "AuthenticationError",
        "AwayError",
        "CheckpointError",
        "ControlError",
        "EnvironmentLostError",
        "FencedError",
        "ForeignError",
        "IllegalTransitionError",
        "JobError",
        "NewerFormatError",
        "PartitionError",
        "PartitionExpiredError",
        "PenstockError",
        "PlanError",
        "QuotaError",
        "SchemaError",
        "SettingError",
        "SlotsError",
        "SlotsLostError",
        "UncertainCheckpointError",
        "VersionError",
    },
    FailureKind.CONSEQUENCE: {
        "IncompleteDataError",
        "JobCancelledError",
        "NotWantedError",
        "PartitionLostError",
        "PartitionNotProducedError",
        "PartitionReleasedError",
        "ProducerFailedError",
        "StaleError",
        "TaskCancelledError",
    },
    FailureKind.HOST: {"DamagedFrameError", "InsufficientBuffersError", "OutsideError", "ProtocolError"},
    FailureKind.STORAGE: {"StorageError"},
    FailureKind.NO_STORAGE: {"NoStorageError"},
    FailureKind.UNRESTORABLE: {"CorruptCheckpointError"},
}


def test_the_kind_of_each_error_is_chosen() -> None:
    """A new error stands in this table, so somebody has thought of what it means for what runs again."""
    members = [*vars(penstock.errors).values(), *vars(penstock.checkpoint.errors).values()]
    errors = {item for item in members if isinstance(item, type) and issubclass(item, PenstockError)}
    found: dict[FailureKind, set[str]] = {}
    for error in errors:
        found.setdefault(error.failure, set()).add(error.__name__)
    assert found == KINDS


def test_what_is_told_apart_is_of_the_host_or_is_not() -> None:
    """Full disks are of the host, whoever has looked for another directory."""
    assert {kind for kind in FailureKind if kind.is_of_host} == {
        FailureKind.HOST,
        FailureKind.STORAGE,
        FailureKind.NO_STORAGE,
    }
