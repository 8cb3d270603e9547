# SPDX-License-Identifier: Apache-2.0
"""Which part of a job's core hears of an event, and which one owns what a decision changes.

Each event and each decision has one case, and each function ends with `assert_never`: the type checker finds the one
that is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from penstock.job.core import decisions as so
from penstock.job.core import events
from penstock.job.core.attempts.attempts import Attempts
from penstock.job.core.checkpoints.checkpoints import Checkpoints
from penstock.job.core.deadlines import Deadline, DeadlineKind
from penstock.job.core.ending.accounts import Accounts
from penstock.job.core.ending.ending import Ending
from penstock.job.core.recovery.recovery import Recovery
from penstock.job.core.slots.arrivals import TaskArrivals
from penstock.job.core.slots.slots import Slots
from penstock.link import master as said


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts that decide in one job."""

    attempts: Attempts
    slots: Slots
    arrivals: TaskArrivals
    recovery: Recovery
    ending: Ending
    checkpoints: Checkpoints
    accounts: Accounts


def hear(parts: JobParts, event: events.ForParts) -> Iterator[so.Decision]:
    """The decisions that follow from an event."""
    match event:
        case events.TaskRegistered():
            yield from parts.arrivals.registered(event)
        case events.TaskGone():
            yield from parts.arrivals.lost(event)
        case events.EnvironmentLost():
            yield from parts.arrivals.environment_lost(event)
        case events.SparkJobReturned():
            yield from parts.arrivals.returned(event)
        case events.SlotsChanged():
            parts.slots.change(event)
            yield so.MakeRoom()
        case said.TaskFinished():
            yield from parts.attempts.finished(event)
        case events.ProducersAwaited():
            yield from parts.attempts.ask(event)
        case events.PartitionsLost():
            yield from parts.attempts.lose_partitions(event)
        case events.PartitionRegistered():
            yield from parts.attempts.deployments.registered(event)
        case events.PartitionRefused():
            yield from parts.attempts.deployments.refused(event)
        case said.PartitionConsumable():
            yield from parts.attempts.deployments.consumable(event)
        case events.CancelRequested():
            yield from parts.ending.cancel(event)
        case events.InstructionFailed():
            yield from parts.ending.break_off(event)
        case said.AcknowledgeCheckpoint():
            yield from parts.checkpoints.acknowledged(event)
        case said.DeclineCheckpoint():
            yield from parts.checkpoints.declined(event)
        case said.DataEnded():
            yield from parts.checkpoints.data_ended(event)
        case events.CheckpointAsked():
            yield from parts.checkpoints.asked(event)
        case events.CheckpointStored():
            yield from parts.checkpoints.stored(event)
        case events.CheckpointStoreFailed():
            yield from parts.checkpoints.store_failed(event)
        case events.OwnerSeen():
            yield from parts.checkpoints.owner_seen(event)
        case events.StopAsked():
            yield from parts.checkpoints.stop(event)
            yield from parts.recovery.stop(event)
        case _:
            assert_never(event)


def follow(parts: JobParts, decision: so.ForParts) -> Iterator[so.Decision]:
    """The decisions that follow from one, after the part that owns what it changes has carried it out."""
    if isinstance(decision, so.ForAttempts):
        return _attempts(parts.attempts, decision)
    if isinstance(decision, so.ForSlots):
        return _slots(parts.slots, decision)
    if isinstance(decision, so.ForRecovery):
        return _recovery(parts.recovery, decision)
    if isinstance(decision, so.ForCheckpoints):
        return _checkpoints(parts.checkpoints, decision)
    if isinstance(decision, so.ForEnding):
        return _ending(parts.ending, decision)
    if isinstance(decision, so.ForAccounts):
        return _accounts(parts.accounts, decision)
    assert_never(decision)


def pass_deadline(parts: JobParts, deadline: Deadline) -> Iterator[so.Decision]:
    """The decisions that follow if a deadline has passed that its part still waits for."""
    match deadline.kind:
        case DeadlineKind.SLOTS | DeadlineKind.DEPLOY | DeadlineKind.LEASED:
            return parts.slots.deadline_passed(deadline)
        case DeadlineKind.RESTART | DeadlineKind.UNEXPLAINED:
            return parts.recovery.deadline_passed(deadline)
        case DeadlineKind.CHECKPOINT:
            return parts.checkpoints.deadline_passed(deadline)
        case DeadlineKind.DRAIN | DeadlineKind.SETTLE | DeadlineKind.ABANDON | DeadlineKind.GRACE:
            return parts.ending.deadline_passed(deadline)
        case _:
            assert_never(deadline.kind)


def _attempts(attempts: Attempts, decision: so.ForAttempts) -> Iterator[so.Decision]:
    match decision:
        case so.Start():
            yield from attempts.deployments.start(decision)
        case so.Orphan():
            yield from attempts.orphan(decision)
        case so.OrphanMany():
            yield from attempts.orphan_many(decision)
        case so.OrphanHost():
            yield from attempts.orphan_host(decision)
        case so.ConfirmDataFrame():
            yield from attempts.confirm_dataframe(decision)
        case so.BeginRound():
            attempts.begin_round(decision)
        case so.Reset():
            yield from attempts.reset(decision)
        case so.StopAll():
            yield from attempts.stop_all(decision)
        case so.StopWaiting():
            yield from attempts.abandon(decision)
        case so.DeployRegion():
            yield from attempts.deployments.deploy_region(decision)
        case so.Forgive():
            attempts.forgive(decision)
        case _:
            assert_never(decision)


def _slots(slots: Slots, decision: so.ForSlots) -> Iterator[so.Decision]:
    match decision:
        case so.LetOff():
            slots.let_off(decision)
        case so.DrainWorker():
            slots.drain(decision)
        case so.DropDataFrame():
            yield from slots.drop_dataframe(decision)
        case so.DismissWorkers():
            yield from slots.dismiss(decision)
        case so.HoldStarts():
            slots.hold_starts(decision)
        case so.CancelSpark():
            yield from slots.cancel_spark(decision)
        case _:
            assert_never(decision)


def _recovery(recovery: Recovery, decision: so.ForRecovery) -> Iterator[so.Decision]:
    match decision:
        case so.Fail():
            yield from recovery.fail(decision)
        case so.AwaitReason():
            yield from recovery.await_reason(decision)
        case so.CompareReaders():
            yield from recovery.compare(decision)
        case so.Withdraw():
            yield from recovery.withdraw(decision)
        case so.MakeRoom():
            yield from recovery.make_room(decision)
        case _:
            assert_never(decision)


def _checkpoints(checkpoints: Checkpoints, decision: so.ForCheckpoints) -> Iterator[so.Decision]:
    match decision:
        case so.AllThere():
            yield from checkpoints.all_there(decision)
        case so.RegionRuns():
            yield from checkpoints.begin(decision)
        case so.SendDeployment():
            yield from checkpoints.complete(decision)
        case so.Interrupt():
            yield from checkpoints.interrupt(decision)
        case so.Unrestorable():
            yield from checkpoints.unrestorable(decision)
        case so.TaskEnded():
            yield from checkpoints.task_finished(decision)
        case _:
            assert_never(decision)


def _ending(ending: Ending, decision: so.ForEnding) -> Iterator[so.Decision]:
    match decision:
        case so.Advance():
            yield from ending.advance(decision)
        case so.RememberCause():
            ending.remember(decision)
        case so.FailForGood():
            yield from ending.fail(decision)
        case _:
            assert_never(decision)


def _accounts(accounts: Accounts, decision: so.ForAccounts) -> Iterator[so.Decision]:
    match decision:
        case so.Record():
            accounts.record(decision)
        case so.Track():
            accounts.track(decision)
        case so.Release():
            yield from accounts.release(decision)
        case so.ReleaseRead():
            yield from accounts.release_read(decision)
        case so.Unreadable():
            yield from accounts.unreadable(decision)
        case _:
            assert_never(decision)
