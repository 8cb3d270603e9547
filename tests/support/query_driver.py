# SPDX-License-Identifier: Apache-2.0
"""A JobMaster with a streaming query whose tasks are threads: real storage and connections, no data plane."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from job_fakes import FakeEnvironment, ThreadLauncher
from job_graphs import chain
from penstock.checkpoint.barriers import CheckpointBarrier, decode
from penstock.checkpoint.metadata import pack_part
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import FailureKind
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph
from penstock.graph.streaming import StreamingOptions, part_name
from penstock.job.launcher import Submission
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle, JobMaster, MasterIdentity
from penstock.link import commands
from penstock.link.master import AcknowledgeCheckpoint, DataEnded, DeclineCheckpoint, TaskEnd
from penstock.settings import RestartSettings, Settings
from penstock.shuffle.actions import CheckpointCompleted, StopSource, TriggerCheckpoint

SETTINGS = replace(Settings(), restart=RestartSettings("exponential", attempts=1000, delay=0.01, max_delay=0.1))
SECRET = b"s" * 32


def query(location: Path, width: int = 1, **options: object) -> JobGraph:
    """A source and a counter."""
    graph = chain(width, width, result=False)
    vertices = tuple(replace(vertex, uid=f"u{vertex.id}") for vertex in graph.vertices)
    streaming = StreamingOptions("q", "counts", str(location), **{"interval": 0.05, **options})  # type: ignore[arg-type]
    return replace(graph, vertices=vertices, streaming=streaming)


class Tasks:
    """The work of tasks: answer each trigger for all tasks with stored snapshots, and end when they are told to."""

    def __init__(self, graph: JobGraph) -> None:
        self.graph = graph
        self.deployed: list[TaskDeployment] = []
        self.storage = CheckpointStorage(graph.streaming.location if graph.streaming else "")
        self.fails = threading.Event()
        """Set if they fail instead, as they do when their disk does."""
        self.declines = threading.Event()
        """Set if they decline each checkpoint, as they do when they can't store it."""

    def run(self, environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        """One task, until the JobMaster cancels it or it was stopped and its last checkpoint is complete."""
        self.deployed.append(deployment)
        attempt, seen, is_ending, covered = deployment.attempt, 0, False, 0
        while True:
            fresh = _commands_behind(environment, seen)
            seen += len(fresh)
            for command in fresh:
                match command:
                    case commands.CancelTask() if command.attempt == attempt:
                        environment.finished(attempt, TaskEnd.CANCELED)
                        return
                    case commands.TaskAction(_, TriggerCheckpoint(barrier)):
                        number = self._acknowledge(environment, deployment, barrier)
                        covered = covered or (number if is_ending else 0)
                    case commands.TaskAction(_, StopSource()):
                        environment.ask(DataEnded(attempt))
                        is_ending = True
                    case commands.TaskAction(_, CheckpointCompleted(number)) if covered and number >= covered:
                        environment.finished(attempt)
                        return
            if environment.ended.is_set():
                return
            if self.fails.is_set():
                environment.finished(attempt, TaskEnd.FAILED, "its disk is full", FailureKind.STORAGE)
                return

    def _acknowledge(self, environment: FakeEnvironment, deployment: TaskDeployment, payload: bytes) -> int:
        attempt, told = deployment.attempt, deployment.streaming
        barrier = decode(payload)
        assert isinstance(barrier, CheckpointBarrier)
        assert told is not None
        if self.declines.is_set():
            environment.ask(DeclineCheckpoint(attempt, barrier.checkpoint, "it can't be stored"))
            return 0
        name = part_name(self.graph.vertex(attempt.vertex).uid, attempt.subtask)
        stamp = Stamp.by(told.owner, barrier.checkpoint)
        try:
            handle = self.storage.write(stamp, name, [("n", b"%d" % barrier.checkpoint)])
        except OSError:  # it was given up, and its folder is gone
            return 0
        environment.ask(AcknowledgeCheckpoint(attempt, barrier.checkpoint, pack_part(handle)))
        return barrier.checkpoint


def _commands_behind(environment: FakeEnvironment, seen: int) -> list[commands.Command]:
    with environment.changed:
        environment.changed.wait_for(lambda: len(environment.commands) > seen, 0.5)
        return environment.commands[seen:]


class Driver:
    """A JobMaster with one environment; a second one may be another driver on the same location."""

    def __init__(self, graph: JobGraph, name: str = "e1") -> None:
        self.tasks = Tasks(graph)
        self.launcher = ThreadLauncher(self.tasks.run)
        self.master = JobMaster(MasterIdentity("app", SECRET), self.launcher, SETTINGS)
        self.environment = FakeEnvironment(self.master.start(), SECRET, name)
        self.launcher.environment = self.environment

    def start(self) -> JobHandle:
        """Claim the location and submit the query."""
        graph = self.tasks.graph
        assert graph.streaming is not None
        self.storage = storage = QueryStorage(graph.streaming)
        storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
        submission = Submission(self.master.new_job(), graph, SETTINGS, 4, checkpoints=storage)
        return self.master.submit(submission)

    def close(self) -> None:
        """End it."""
        self.master.close()
        self.environment.close()
