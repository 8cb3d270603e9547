# SPDX-License-Identifier: Apache-2.0
"""A cluster without Spark for tests: JobMaster, executors, workers, one environment process for each executor."""

from __future__ import annotations

import dataclasses
import functools
import os
import queue
import secrets
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from penstock.api.stream import Stream
from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.checkpoint.errors import FencedError
from penstock.errors import JobError
from penstock.graph.job_graph import JobGraph
from penstock.job.core.ids import SparkJob
from penstock.job.core.result import FinishedJob
from penstock.job.launcher import Submission
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle, JobMaster, MasterIdentity
from penstock.link.rendezvous import sweep
from penstock.settings import Settings
from penstock.shuffle import ShuffleDescriptor
from penstock.spark.result_reader import read_partitions
from penstock.spark.task import TaskPlan, run_worker
from penstock.testing import DEADLINE, wait_until
from penstock_bench.environment import environment_pids
from penstock_torture.process_launcher import WORKER_FAILURES, Executor, Nursery, ProcessLauncher, ProcessPayload

PRELOADED = (
    "penstock.spark.task",
    "penstock.services.local",
    "penstock.spark.result_reader",
    "penstock_torture.gates",
    "pyspark.cloudpickle",
)
STREAMING_PRELOADED = (
    *PRELOADED,
    "penstock.spark.stream_task",
    "penstock.stream.folder_sink",
    "penstock.stream.rate",
)
CONF = {
    "spark.penstock.environment.scope": "executor",
    "spark.penstock.environment.leaseTimeout": "20s",
    "spark.penstock.network.memory": "32m",
}
SLOTS = 4


class ProcessCluster:
    """Two executors unless told otherwise; closed at the end of each test.

    `through` may give another address than the JobMaster's, by which environments reach it.
    """

    def __init__(
        self,
        nursery: Nursery,
        executors: int = 2,
        conf: dict[str, str] | None = None,
        through: Callable[[str], str] = str,
    ) -> None:
        self.conf = {**CONF, **(conf or {})}
        self.settings = Settings.from_conf(self.conf)
        self.launcher = ProcessLauncher(nursery, executors)
        application, secret = f"grid-{secrets.token_hex(4)}", secrets.token_bytes(32)
        self.master = JobMaster(MasterIdentity(application, secret), self.launcher, self.settings)
        address = through(self.master.start())
        secret = self.master.identity.secret  # with a user's key it is another one
        self.launch = EnvironmentLaunch(application, secret, address, self.conf, certificate=self.master.certificate)

    def submit(self, stream: Stream) -> JobHandle:
        """Start a job."""
        return self.submit_graph(stream.plan(self.settings, SLOTS).graph, SLOTS, self.settings)

    def submit_graph(
        self, graph: JobGraph, slots: int, settings: Settings, checkpoints: QueryStorage | None = None
    ) -> JobHandle:
        """Start a job, or with `checkpoints` a streaming query."""
        job = self.master.new_job()

        def work(planned: JobGraph, launched: SparkJob) -> bytes:
            plan = TaskPlan(self.launch, job, planned, launched.id)
            return bytes(cloudpickle.dumps(functools.partial(run_worker, plan)))

        payload = ProcessPayload(work)
        return self.master.submit(Submission(job, graph, settings, slots, payload, checkpoints=checkpoints))

    def trace(self, job: str, name: str) -> list[str]:
        """The entries that a running job has recorded under a name; none once it is over."""
        return [ids for _, entry, ids in self.master._driver._core.trace(job) if entry == name]

    def executor(self, group: int) -> Executor:
        """The executor that leads a process group."""
        return next(executor for executor in self.launcher.executors if executor.pid == group)

    def environment_pid(self, executor: Executor) -> int:
        """The environment process beside an executor."""
        attachment = attach(dataclasses.replace(self.launch, scope_key=str(executor.pid)))
        attachment.close()
        return pid_of(attachment.environment)

    def read(self, finished: FinishedJob, schema: pa.Schema) -> pa.Table:
        """The rows of a job's result, read by a worker of the first executor."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/rows"
            self.run_worker(functools.partial(_read_into, path, finished.partitions, schema, self.launch))
            with pa.memory_map(path) as source:
                return pa.ipc.open_file(source).read_all().combine_chunks()

    def run_worker(self, work: Any) -> None:
        """Run a function of number and attempt in a worker's process; as Spark, try it again where it raises."""
        codes: queue.SimpleQueue[int] = queue.SimpleQueue()
        found: list[int] = []
        while 0 not in found and len(found) < WORKER_FAILURES:
            self.launcher.start_worker(bytes(cloudpickle.dumps(work)), 0, codes.put)
            found.append(codes.get(timeout=DEADLINE))
        assert found[-1] == 0, found

    def close(self) -> None:
        """End everything; one that is just being started would look for the JobMaster as long as its lease lasts."""
        wait_until(lambda: self.launcher.is_idle, "the last workers have ended")
        wait_until(self._all_attached, "all environments are attached")
        self.master.close()
        self.launcher.close_executors()
        sweep()  # what the next environment of this host would do with the folders of killed ones

    def attached(self) -> set[int]:
        """The environment processes that the JobMaster knows."""
        return {pid_of(name) for name in list(self.master._driver.environments._attached)}

    def _all_attached(self) -> bool:
        return {pid for pid in environment_pids(self.launch.application) if lives(pid)} == self.attached()


def give_way(former: JobHandle, is_whole: Callable[[], bool]) -> None:
    """Wait for a driver from which another one has taken over: it fails, or all its rows were committed before."""
    try:
        former.wait(DEADLINE)
    except (FencedError, JobError):  # a task that it lost may be the last thing it sees
        return
    assert is_whole(), "a driver that has lost its location says that its query has ended well"


def pid_of(environment: str) -> int:
    """The process of an environment: it is in its name."""
    return int(environment.rsplit("-", 2)[1])


def kill(pid: int) -> None:
    """SIGKILL, which returns when the process is dead or a zombie; nothing where there is none."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
    wait_until(lambda: not lives(pid), f"process {pid} is dead")


def lives(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _read_into(
    path: str,
    descriptors: tuple[ShuffleDescriptor, ...],
    schema: pa.Schema,
    launch: EnvironmentLaunch,
    number: int,
    attempt: int,
) -> None:
    with pa.ipc.new_file(path, schema) as writer:
        for batch in read_partitions(descriptors, schema, launch):
            writer.write_batch(batch)
