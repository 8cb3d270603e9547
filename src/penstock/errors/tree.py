# SPDX-License-Identifier: Apache-2.0
"""Every error Penstock raises, as a tree.

All are picklable, because Spark and our own control plane carry them between processes.

    PenstockError
    ├── SettingError            a setting, argument or plan is wrong: nothing was started
    │   ├── PlanError           the pipeline cannot be built or would deadlock
    │   └── SchemaError         columns or types do not fit
    ├── SlotsError              not enough task slots
    │   └── SlotsLostError      there were enough when the job began: it may be planned anew
    ├── PartitionError          what a reader is told about a partition it cannot read
    │   ├── PartitionNotProducedError / PartitionReleasedError / PartitionExpiredError
    │   ├── PartitionLostError  its host or file is gone
    │   └── ProducerFailedError the producer failed; the cause is the producer's
    ├── ArithmeticOverflowError  a value left its type; the user's data, so nothing is tried again
    ├── IncompleteDataError     rows, bytes or checksum differ from what the writer counted
    ├── ProtocolError           a peer sent bytes that are not our protocol (the remote is to blame)
    │   └── IllegalTransitionError  an event that has no place in an object's state
    ├── AuthenticationError     a peer could not prove the application's secret
    │   └── VersionError        it did not come to that: the peer speaks another version of the protocol
    ├── ForeignError            what was asked for is another application's
    ├── StaleError              the message belongs to an attempt or a master that is no longer current
    ├── StorageError            what is to be kept can't be written: a disk is full or broken
    │   └── NoStorageError      ... and all other directories of this host are, too
    ├── OutsideError            a query's source, sink or checkpoint location failed: it is tried again, later
    ├── InsufficientBuffersError  the network memory cannot give the guaranteed minimum
    ├── EnvironmentLostError    the environment process or the connection to it is gone
    ├── ControlError            the JobMaster could not be reached or did not answer in time
    ├── TaskCancelledError      this task was told to stop
    │   └── NotWantedError      ... because no reader wants its rows any more: it ends well
    └── JobError                the job failed; carries the user's traceback where there is one
        └── JobCancelledError
"""

from __future__ import annotations

from typing import ClassVar

from penstock.errors.failure_kinds import FailureKind


class PenstockError(Exception):
    """Base of all errors of Penstock. One message says what, where and what to do.

    `failure` says what it means that a task has failed with it. `partition` is the one that could not be read, as it
    travels (`PartitionId.to_wire`); mostly there is none.
    """

    failure: ClassVar[FailureKind] = FailureKind.CAUSE
    partition: tuple[object, ...] | None = None


class SettingError(PenstockError, ValueError):
    """A setting or an argument is wrong; nothing was started."""


class PlanError(SettingError):
    """The pipeline cannot be built, or its pipelined edges could deadlock."""


class SchemaError(SettingError):
    """A column is missing, or types do not fit what was declared."""


class SlotsError(PenstockError):
    """The region needs more task slots than there are."""


class SlotsLostError(SlotsError):
    """Slots went while the job ran, and it needs more at the same time than are left. A new plan may need fewer."""


class PartitionError(PenstockError):
    """A partition cannot be read; the subclass says why."""


class PartitionNotProducedError(PartitionError):
    """The partition was not yet produced when the deadline passed."""

    failure = FailureKind.CONSEQUENCE


class PartitionReleasedError(PartitionError):
    """The partition was released: its data is gone on purpose."""

    failure = FailureKind.CONSEQUENCE


class PartitionExpiredError(PartitionError):
    """The partition's lease ran out."""


class PartitionLostError(PartitionError):
    """The partition's host, process or file is gone."""

    failure = FailureKind.CONSEQUENCE


class ProducerFailedError(PartitionError):
    """The partition's producer failed or was cancelled."""

    failure = FailureKind.CONSEQUENCE


class ArithmeticOverflowError(PenstockError, ArithmeticError):
    """A result does not fit its type, and the session's rules (`spark.sql.ansi.enabled`) make that an error."""


class IncompleteDataError(PenstockError):
    """A reader received other rows, bytes or checksum than the writer counted."""

    failure = FailureKind.CONSEQUENCE


class ProtocolError(PenstockError):
    """The peer sent bytes that are not our protocol."""

    failure = FailureKind.HOST


class DamagedFrameError(ProtocolError, ConnectionError):
    """Other bytes have come than were sent: the connection is of no use any more, and another one may be."""


class IllegalTransitionError(ProtocolError):
    """An event that has no place in an object's state: the caller does not keep to the order of its states."""

    failure = FailureKind.CAUSE


class AuthenticationError(PenstockError):
    """The peer could not prove that it knows the application's secret."""


class VersionError(AuthenticationError):
    """A peer speaks another version of the protocol."""


class ForeignError(PenstockError):
    """A known peer asks for what belongs to another application, or another user."""


class StaleError(PenstockError):
    """The message belongs to an attempt or master that is no longer current."""

    failure = FailureKind.CONSEQUENCE


class StorageError(PenstockError):
    """A directory takes no more: its disk is full or broken, or there is none that takes a partition."""

    failure = FailureKind.STORAGE


class NoStorageError(StorageError):
    """All directories of a host are full or broken."""

    failure = FailureKind.NO_STORAGE


class QuotaError(PenstockError):
    """An application may not keep as much as it wants to."""


class OutsideError(PenstockError):
    """A source, a sink or the checkpoint location of a query failed: its disk, its mount, its network.

    The query restarts, with a growing wait. Sources and sinks of users may raise it too.
    """

    failure = FailureKind.HOST


class InsufficientBuffersError(PenstockError):
    """The network memory cannot give the guaranteed minimum of buffers."""

    failure = FailureKind.HOST


class EnvironmentLostError(PenstockError):
    """The environment process, or the connection to it, is gone."""


class ControlError(PenstockError):
    """The JobMaster could not be reached or did not answer in time."""


class TaskCancelledError(PenstockError):
    """This task was told to stop."""

    failure = FailureKind.CONSEQUENCE


class NotWantedError(TaskCancelledError):
    """All who read this task's rows have ended, and had enough: it is to end, and has not failed."""


class JobError(PenstockError):
    """The job failed. The message holds the user's traceback where user code raised."""


class JobCancelledError(JobError):
    """The job was cancelled."""

    failure = FailureKind.CONSEQUENCE
