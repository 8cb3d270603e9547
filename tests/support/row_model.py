# SPDX-License-Identifier: Apache-2.0
"""Rows for the cluster model: what attempts write into their partitions, and what their readers count.

Every attempt of a source writes the same rows, but an unsteady one deals them out to its readers in another way each
time, and a DataFrame is cut anew each time it is read. An attempt reads what it was told of, channel by channel; it
can end when all of that is complete, and it fails where something of it is gone. At its end it has written all it has
read. So if a reader ever mixes attempts, reads too early, or is not run again when it must be, rows are missing or
twice. A vertex in `modest` may have enough of what is complete and end without the rest; one in `endless` never ends
by itself.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from cluster import Cluster, SparkTask
from penstock.errors import FailureKind
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import RESULT_EDGE, JobGraph
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.ids import SparkJob, SparkJobId
from penstock.link.commands import UpdatePartitionInfo
from penstock.link.master import PartitionConsumable, TaskEnd
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor

ROWS = 4
"""The rows of each subtask of a source."""
Row = tuple[int, int]


@dataclass
class Written:
    """The rows that one attempt has written into one partition, by subpartition."""

    rows: list[list[Row]]
    complete: bool = False
    dead: bool = False


@dataclass
class Running:
    """An attempt at work."""

    attempt: AttemptId
    spark_job: SparkJobId
    deployment: TaskDeployment
    channels: list[list[tuple[ShuffleDescriptor, int, int]]]
    written: bool = False
    left: tuple[int, ...] = ()
    """The edges that it has not read to their end, because it had enough."""
    cut_off: bool = False
    """Of a DataFrame's task: Spark has ended it in mid-data, and it takes that for the end."""
    question: int | None = None
    confirmed: bool = False
    fingerprints: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, list[int]] = field(default_factory=dict)


class RowCluster(Cluster):
    """A cluster whose tasks move rows. `unsteady` are the vertices that deal rows out in another way each time."""

    def __init__(
        self, dice: Random, slots: int, environments: list[str], unsteady: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(slots, environments)
        self.dice = dice
        self.unsteady = unsteady
        self.modest = self.endless = frozenset[int]()
        self.graphs: dict[str, JobGraph] = {}
        self.store: dict[PartitionId, Written] = {}
        self.running: dict[AttemptId, Running] = {}
        self.widths: dict[tuple[str, SparkJobId], int] = {}
        self.unseen: set[PartitionId] = set()
        """Partitions that are lost, and nobody knows yet: a result may have them, and is made again later."""
        self.counted: dict[str, Counter[Row]] = {}
        """The rows of each job that ended well, counted at that moment."""

    def note_graph(self, job: str, graph: JobGraph) -> None:
        """A job is going to be submitted."""
        self.graphs[job] = graph

    def frame_width(self, job: str, graph: JobGraph, launched: SparkJob) -> int:
        """Spark may find fewer partitions than it was asked for, each time other ones."""
        assert launched.vertex is not None
        width = self.dice.randint(1, graph.vertex(launched.vertex).parallelism)
        self.widths[job, launched.id] = width
        return width

    # --- what tasks do

    def at_work(self) -> list[Running]:
        """The attempts that somebody works on and that have not written everything, or wait to report."""
        live = {task.attempt for task in self.tasks if task.attempt is not None}
        for attempt in [attempt for attempt in self.running if attempt not in live]:
            self._die(self.running.pop(attempt))
        return list(self.running.values())

    def able(self) -> list[tuple[str, Running]]:
        """The steps that attempts could take now, each with its name."""
        found = []
        for running in self.at_work():
            if running.written:
                found.append(("report", running))
                continue
            found += [("announce", running)] if self._unannounced(running) else []
            gone = self._gone(running)
            if gone is not None:
                found.append(("fail", running))
            elif self._has_all(running) and running.attempt.vertex not in self.endless:
                found.append(("write", running) if self._is_confirmed(running) else ("ask", running))
            elif running.attempt.vertex in self.modest:
                found.append(("leave", running))
        return [item for item in found if item[0] != "ask" or item[1].question is None]

    def act(self, what: str, running: Running) -> None:
        """Do it."""
        attempt = running.attempt
        if what == "announce":
            partition = self.dice.choice(self._unannounced(running))
            self.store[partition] = self.store.get(partition) or Written([])
            self.send(PartitionConsumable(partition))
        elif what == "ask":
            running.question = self.call()
            self.send(events.ProducersAwaited(running.question, attempt))
        elif what == "write":
            self._write(running)
        elif what == "leave":
            running.left = tuple(item.edge for item in running.deployment.inputs)
            self._write(running)
        elif what == "report":
            del self.running[attempt]
            task = self._task_of(attempt)
            self.report(task, fingerprints=running.fingerprints, sizes=running.sizes, left=running.left)
            if running.cut_off and not task.is_over:
                self._drop(task)
                self._retry(task)
        else:
            lost = self._gone(running)
            self._die(self.running.pop(attempt))
            report = {"state": TaskEnd.FAILED, "error": "gone", "failure": FailureKind.CONSEQUENCE, "lost": lost}
            self.report(self._task_of(attempt), **report)

    def expected_rows(self, job: str) -> Counter[Row]:
        """The rows that must be in it: each row of a source once for each way to a result."""
        graph = self.graphs[job]
        ways = {vertex.id: Counter[int]() for vertex in graph.vertices}
        for vertex in graph.vertices:
            edges = graph.inputs_of(vertex.id)
            start = Counter({vertex.id: 1}) if not edges else Counter()
            ways[vertex.id] = sum((ways[edge.producer] for edge in edges), start)
        total: Counter[int] = sum((ways[number] for number in graph.result), Counter())
        rows = {vertex.id: ROWS * vertex.parallelism for vertex in graph.vertices}
        return Counter({(vertex, number): n for vertex, n in total.items() for number in range(rows[vertex])})

    # --- instructions

    def _note(self, instruction: do.Instruction) -> None:
        super()._note(instruction)
        match instruction:
            case do.AnswerRegistration(_, attempt, TaskDeployment() as deployment):
                self._begin(attempt, deployment)
            case do.TellEnvironment(_, UpdatePartitionInfo(consumer, descriptor)):
                self._update(consumer, descriptor.partition.dataset.number, descriptor)
            case do.CompleteJob(job, _, partitions):
                self.counted[job] = self._count_rows(partitions)
            case do.AnswerProducers(call, attempt, error):
                running = self.running.get(attempt)
                if running is not None and running.question == call:
                    running.confirmed = error is None
            case _:
                pass

    def _cut(self, task: SparkTask, attempt: AttemptId) -> None:
        """It may have ended before, or fail; what it has written is gone."""
        running = self.running.get(attempt)
        if running is None or task.attempt != attempt or (running.written and self.dice.random() < 0.5):
            return
        del self.running[attempt]
        for output in running.deployment.outputs:
            self.store[output.descriptor.partition] = Written([], dead=True)
        if self.dice.random() < 0.2:
            self.report(task, state=TaskEnd.FAILED, error="it must not be closed")
        else:
            super()._cut(task, attempt)

    def _begin(self, attempt: AttemptId, deployment: TaskDeployment) -> None:
        found = [task for task in self.tasks if task.attempt == attempt]
        if found:
            channels = [list(gate.channels) for gate in deployment.inputs]
            self.running[attempt] = Running(attempt, found[0].spark_job, deployment, channels)

    def _update(self, consumer: AttemptId, gate: int, descriptor: ShuffleDescriptor) -> None:
        running = self.running.get(consumer)
        if running is None:
            return
        number = [item.edge for item in running.deployment.inputs].index(gate)
        for position, (source, first, count) in enumerate(running.channels[number]):
            if source.partition.index == descriptor.partition.index:
                assert source.is_unknown, f"{consumer} knew {source.partition} and was told of {descriptor.partition}"
                running.channels[number][position] = (descriptor, first, count)

    # --- rows

    def _count_rows(self, partitions: tuple[ShuffleDescriptor, ...]) -> Counter[Row]:
        """The rows in a job's result, all of it readable now."""
        found: Counter[Row] = Counter()
        for descriptor in partitions:
            if not descriptor.empty:
                written = self.store[descriptor.partition]
                assert written.complete, f"{descriptor.partition} is not complete"
                known = self.lost - self.unseen
                assert descriptor.partition not in known, f"{descriptor.partition} was lost"
                found.update(row for rows in written.rows for row in rows)
        return found

    def _task_of(self, attempt: AttemptId) -> SparkTask:
        (task,) = [task for task in self.tasks if task.attempt == attempt]
        return task

    def _unannounced(self, running: Running) -> list[PartitionId]:
        kinds = [item.descriptor for item in running.deployment.outputs if item.edge != RESULT_EDGE]
        return [item.partition for item in kinds if item.kind.pipelined and item.partition not in self.store]

    def _sources(self, running: Running) -> list[tuple[ShuffleDescriptor, int, int]]:
        return [channel for channels in running.channels for channel in channels]

    def _gone(self, running: Running) -> PartitionId | None:
        for source, _, _ in self._sources(running):
            written = self.store.get(source.partition)
            is_gone = source.partition in self.lost or source.partition in self.released
            if not source.is_unknown and not source.empty and (is_gone or (written is not None and written.dead)):
                return source.partition
        return None

    def _has_all(self, running: Running) -> bool:
        return all(source.empty or self._is_complete(source) for source, _, _ in self._sources(running))

    def _is_complete(self, source: ShuffleDescriptor) -> bool:
        written = self.store.get(source.partition)
        return not source.is_unknown and written is not None and written.complete

    def _is_confirmed(self, running: Running) -> bool:
        return running.confirmed or not any(gate.await_confirmation for gate in running.deployment.inputs)

    def _write(self, running: Running) -> None:
        attempt, graph = running.attempt, self.graphs[running.attempt.job]
        rows = sorted(self._read(running) if running.deployment.inputs else self._made(running, graph))
        salt = attempt.attempt if attempt.vertex in self.unsteady else 0
        for output in running.deployment.outputs:
            parts: list[list[Row]] = [[] for _ in range(output.subpartitions)]
            for row in rows:
                parts[zlib.crc32(repr((row, output.edge, salt)).encode()) % len(parts)].append(row)
            self.store[output.descriptor.partition] = Written(parts, complete=True)
            running.fingerprints[output.edge] = zlib.crc32(repr(parts).encode())
            running.sizes[output.edge] = [len(part) << 18 for part in parts]
        running.written = True

    def _read(self, running: Running) -> list[Row]:
        rows: list[Row] = []
        for source, first, count in self._sources(running):
            if not source.empty and self._is_complete(source):
                for number in range(first, first + count):
                    rows += self.store[source.partition].rows[number]
        return rows

    def _made(self, running: Running, graph: JobGraph) -> list[Row]:
        attempt, vertex = running.attempt, graph.vertex(running.attempt.vertex)
        if not vertex.reads_dataframe:
            first = attempt.subtask * ROWS
            return [(vertex.id, first + number) for number in range(ROWS)]
        width, total = self.widths[attempt.job, running.spark_job], ROWS * vertex.parallelism
        rows = [
            (vertex.id, number)
            for number in range(total)
            if (number + running.spark_job.number) % width == attempt.subtask
        ]
        return rows[: self.dice.randrange(len(rows))] if running.cut_off and rows else rows

    def _die(self, running: Running) -> None:
        """Its process is gone or it failed: what it has not completed never will be."""
        for output in running.deployment.outputs:
            written = self.store.setdefault(output.descriptor.partition, Written([]))
            written.dead = not written.complete
