# SPDX-License-Identifier: Apache-2.0
"""The tasks of a pipeline of the laboratory: sources at a fixed rate, and consumers whose pace can be changed.

Each is a thread with an attachment of its own, as a task has one, and writes or reads by the service `local`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.attachment.attachment import Attachment
from penstock.errors import PenstockError
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    EventKind,
    InputGate,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
    load_service,
)
from penstock.shuffle.events import EpochEnd
from penstock.shuffle.splits import Split
from penstock_lab.cluster import JOB, SERVICE, SINKS, SOURCES, LabCluster
from penstock_lab.figures import SinkTrace, SourceTrace

SCHEMA = pa.schema([("n", pa.int64())])
OVERHEAD = 2048
"""Bytes of a segment that are left for the framing of a batch, which the service may cut into several messages."""
LOOK = 0.005
"""Seconds until a task that waits looks whether it was told something."""
BURST = 4
"""A source that has waited makes up for so many batches at once, not for all that it missed."""


def batch_rows(cluster: LabCluster) -> int:
    """The rows of a batch that fills a segment."""
    return (cluster.settings.network.segment_size - OVERHEAD) // 8


class LabTask:
    """A thread that works until it is told to stop. Its error, if it had one, is raised by `join`."""

    def __init__(self, cluster: LabCluster, host: str, number: int) -> None:
        self._cluster = cluster
        self._host = host
        self._name = f"{host}-{number}"
        self._attempt = AttemptId(JOB, (SOURCES, SINKS).index(host), number, 1)
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lab-{self._name}", daemon=True)

    def start(self) -> None:
        """Begin, and wait until it is at work."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self.join()

    def stop(self) -> None:
        """Tell it to end."""
        self._stop.set()

    def check(self) -> None:
        """Raise its error, if it has one."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait for its end; raises its error."""
        if self._thread.ident is not None:
            self._thread.join()
        self.check()

    def _run(self) -> None:
        try:
            attachment = self._cluster.attach(self._host)
            try:
                self._work(attachment)
            finally:
                attachment.close()
        except BaseException as error:  # noqa: BLE001 - whoever joins the thread raises it
            self._error = error
        finally:
            self._ready.set()

    def _work(self, attachment: Attachment) -> None:
        raise NotImplementedError

    def _service(self, attachment: Attachment) -> tuple[OwnerContext, ShuffleEnvironmentContext]:
        owner = OwnerContext(self._attempt, self._name, MetricGroup(self._name))
        return owner, ShuffleEnvironmentContext(JOB, b"", self._cluster.settings, attachment)


class LabSource(LabTask):
    """Writes one partition at a fixed rate, its channels in turns."""

    def __init__(self, cluster: LabCluster, index: int, channels: int, rate: float) -> None:
        super().__init__(cluster, SOURCES, index)
        self.trace = SourceTrace()
        self._partition = cluster.descriptor(index)
        self._channels = channels
        self._interval = 1 / rate
        self._barriers: list[int] = []
        self._batch = pa.record_batch([pa.array(np.zeros(batch_rows(cluster), np.int64))], schema=SCHEMA)

    def trigger(self, checkpoint: int) -> None:
        """Have it send a barrier: from now on the checkpoint lasts. Any thread."""
        self.trace.triggered[checkpoint] = time.monotonic()
        self._barriers.append(checkpoint)

    def _work(self, attachment: Attachment) -> None:
        owner, context = self._service(attachment)
        environment = load_service(SERVICE).create_shuffle_environment(context)
        made = PartitionDescriptor(
            self._partition.partition.dataset, self._partition.partition.index, self._partition.kind, self._channels
        )
        described = ResultPartitionDescriptor(made, self._partition, SCHEMA, is_stream=True)
        (writer,) = environment.create_result_partition_writers(owner, [described])
        writer.setup()
        try:
            self._ready.set()
            self._give(writer, attachment)
        finally:
            writer.close(PenstockError("the run is over"))

    def _give(self, writer: ResultPartitionWriter, attachment: Attachment) -> None:
        due, number, refused = time.monotonic(), 0, 0.0
        while not self._stop.is_set():
            seen = attachment.arrivals
            while self._barriers:
                writer.end_epoch(self._barriers.pop(0).to_bytes(8, "little"), EventKind.BLOCKING)
            now = time.monotonic()
            if now < due:
                attachment.wait(seen, min(due - now, LOOK))
                continue
            target = number % self._channels
            if not writer.offer(Split.whole(self._batch, target)):
                writer.flush()
                refused = refused or now
                attachment.wait(seen, LOOK)
                continue
            writer.flush()
            if refused:
                self.trace.refused.append((refused, now))
                refused = 0.0
            self.trace.given.append((now, target))
            number += 1
            due = max(due + self._interval, now - BURST * self._interval)
        if refused:
            self.trace.refused.append((refused, math.inf))


class LabSink(LabTask):
    """Reads one channel of one partition; can be stopped and slowed."""

    def __init__(self, cluster: LabCluster, number: int, source: ShuffleDescriptor, channel: int) -> None:
        super().__init__(cluster, SINKS, number)
        self.trace = SinkTrace()
        self._channels = (ChannelDescriptor(source, channel),)
        self._batch = batch_rows(cluster)
        self.pause = 0.0
        """Seconds of work for each batch; infinite: none is taken any more."""

    def _work(self, attachment: Attachment) -> None:
        owner, context = self._service(attachment)
        environment = load_service(SERVICE).create_shuffle_environment(context)
        (gate,) = environment.create_input_gates(owner, [InputGateDescriptor(0, SCHEMA, self._channels)])
        gate.setup()
        try:
            self._ready.set()
            self._take(gate, attachment)
        finally:
            gate.close()

    def _take(self, gate: InputGate, attachment: Attachment) -> None:
        rows = 0
        while not self._stop.is_set():
            if math.isinf(self.pause):
                self._stop.wait(LOOK)
                continue
            seen = attachment.arrivals
            received = gate.poll()
            if received is None:
                attachment.wait(seen, LOOK)
            elif isinstance(received.event, EpochEnd):
                self.trace.barriers[int.from_bytes(received.event.payload, "little")] = time.monotonic()
                gate.resume_consumption(received.channel)
            elif received.batch is not None:
                rows += received.batch.num_rows
                while rows >= self._batch:
                    rows -= self._batch
                    self.trace.taken.append(time.monotonic())
                    if self.pause:
                        self._stop.wait(self.pause)


def stop_all(tasks: Sequence[LabTask]) -> None:
    """End tasks, the consumers first: a source that is given up would be an error to them."""
    for kind in (LabSink, LabSource):
        ending = [task for task in tasks if isinstance(task, kind)]
        for task in ending:
            task.stop()
        for task in ending:
            task.join()
