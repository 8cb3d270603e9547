# SPDX-License-Identifier: Apache-2.0
"""Runs a subtask of a streaming query in a Spark task, over the task's attachment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.attachment.mailbox import AttachmentMailbox
from penstock.checkpoint.metadata import unpack_part
from penstock.graph.deployment import TaskDeployment
from penstock.graph.streaming import StreamDeployment, StreamingOptions
from penstock.settings import Settings
from penstock.stream.runner import StreamTaskPlan, run_stream_subtask
from penstock.task.runner import EnvironmentOf, SubtaskPlan, SubtaskReport

if TYPE_CHECKING:
    from penstock.attachment.attachment import Attachment


def run_streaming(
    plan: SubtaskPlan, streaming: StreamingOptions, attachment: Attachment, of: EnvironmentOf, settings: Settings
) -> SubtaskReport:
    """Run it to its end; raises as `run_stream_subtask`."""
    task = task_plan(streaming, plan.deployment)
    mailbox = AttachmentMailbox(attachment, plan.deployment.attempt)
    host = mailbox if streaming.unaligned else None
    share = mailbox.share_counts if streaming.restarts_alone else None
    return run_stream_subtask(plan, of, mailbox, settings, task, host, share)


def task_plan(streaming: StreamingOptions, deployment: TaskDeployment) -> StreamTaskPlan:
    """The plan of a query's task besides its channels."""
    told = deployment.streaming or StreamDeployment("")
    return StreamTaskPlan(
        location=streaming.location,
        owner=told.owner,
        consistency=streaming.consistency,
        buffer_timeout=streaming.buffer_timeout,
        max_parallelism=streaming.max_parallelism,
        restored=tuple((name, unpack_part(handle)) for name, handle in told.restored),
        is_finished=told.is_finished,
        widths=told.widths,
        recover_without_in_flight=told.drops_in_flight,
        rescale_by_function=streaming.rescale_by_function,
        logs_in_flight=streaming.logs_in_flight,
        behind=told.behind,
        available_now=streaming.available_now,
        logs_for_readers=streaming.logs_for_readers,
        goes_on=told.goes_on,
    )
