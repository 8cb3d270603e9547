# SPDX-License-Identifier: Apache-2.0
"""A `Launcher` without Spark: executors are process groups, and every worker is a process of its own.

The JobMaster, the workers' processes and whatever they start (environment processes above all) are real. This stands
in for Spark:

- A `Nursery` is one Python process that has imported what workers need. It forks executors, and an executor forks its
  workers, so that a worker costs milliseconds. Nobody computes in a nursery or an executor.
- An executor is the leader of a session; `kill` ends it with all its workers at once, as the end of a JVM does. A
  process that its workers detached (an environment process) stays.
- A worker that dies is started again under a new attempt until it has died `WORKER_FAILURES` times, as with Spark's
  `spark.task.maxFailures` on a cluster; one that returns is not. A dead executor is replaced then.
- A cancel kills at once; Spark's does so some seconds later. A Spark job that reads a DataFrame is refused.

Functions come pickled, over a socket pair that only the parent has, and are unpickled in the worker itself.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType

from penstock.graph.job_graph import JobGraph
from penstock.job.core.events import SparkJobReturned
from penstock.job.core.ids import SparkJob, SparkJobId
from penstock.job.launcher import LaunchRequest

WORKER_FAILURES = 4
"""The number of times that one worker may die before its Spark job fails: Spark's own number."""
_SECONDS = 20.0
_KILLED = -int(signal.SIGKILL)

Ended = Callable[[int], None]
"""Called once with a worker's exit code, as `subprocess` has it; from any thread."""


@dataclass(frozen=True, slots=True)
class ProcessPayload:
    """The need of this launcher from a submission: a way to make the function of a Spark job's workers.

    It is a pickle of a function that is called in each worker with the worker's number and its attempt.
    """

    work: Callable[[JobGraph, SparkJob], bytes]


class Executor:
    """A process group that runs workers; made by `Nursery.start_executor`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pid = int(connection.recv())
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._ended: dict[int, Ended] = {}
        self._dead = False
        self._reader = threading.Thread(target=self._read, name=f"penstock-executor-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def is_dead(self) -> bool:
        """True if its process has ended."""
        return self._dead

    @property
    def load(self) -> int:
        """The number of workers that it runs."""
        return len(self._ended)

    def run(self, work: bytes, number: int, attempt: int, ended: Ended) -> int:
        """Start a worker; the key to stop it by. On a dead executor it has ended at once."""
        with self._lock:
            key = next(self._keys)
            if not self._dead:
                self._ended[key] = ended
                with contextlib.suppress(OSError):
                    self._connection.send((key, work, number, attempt))
                return key
        ended(_KILLED)
        return key

    def stop(self, key: int) -> None:
        """Kill a worker; nothing where it has ended."""
        with self._lock, contextlib.suppress(OSError):
            if key in self._ended:
                self._connection.send((key, b"", 0, 0))

    def kill(self) -> None:
        """End it and all its workers with SIGKILL; returns when it is known to be dead."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reader.join(_SECONDS)

    def close(self) -> None:
        """Kill what is left; idempotent."""
        self.kill()
        self._connection.close()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                key, code = self._connection.recv()
                with self._lock:
                    ended = self._ended.pop(key)
                ended(code)
        with self._lock:
            self._dead = True
            left, self._ended = list(self._ended.values()), {}
        for ended in left:
            ended(_KILLED)


class Nursery:
    """The process that forks executors, which are closed for themselves. A context manager."""

    def __init__(self, modules: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        program = "from penstock_torture.process_launcher import serve_nursery as s; import sys; s(sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno()), *modules],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        self._control = ours

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_executor(self) -> Executor:
        """A new executor without workers."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        return Executor(Connection(ours.detach()))

    def close(self) -> None:
        """End the nursery; idempotent."""
        self._control.close()
        self._process.wait(_SECONDS)


class ProcessLauncher:
    """A `Launcher` over some executors; a worker goes to the one that runs the fewest, of equals to the first."""

    def __init__(self, nursery: Nursery, executors: int = 1) -> None:
        self._nursery = nursery
        self._lock = threading.Lock()
        self._attempts = itertools.count(1)
        self._launched: dict[tuple[str, SparkJobId], _Launched] = {}
        self._is_closed = False
        self.executors = [nursery.start_executor() for _ in range(executors)]

    def launch(self, request: LaunchRequest) -> None:
        """Start the workers; returns at once."""
        payload = request.submission.payload
        if not isinstance(payload, ProcessPayload):
            raise TypeError("the submission has no payload for processes")
        for spark_job in request.spark_jobs:
            running = _Launched(self, request, spark_job, payload)
            with self._lock:
                self._launched[request.submission.job, spark_job.id] = running
            threading.Thread(target=running.run, name=f"penstock-{spark_job.id}", daemon=True).start()

    def cancel(self, job: str, spark_job: SparkJobId | None = None) -> None:
        """Kill what is left of a job's workers, or those of one Spark job."""
        with self._lock:
            found = [running for (name, number), running in self._launched.items() if name == job]
        for running in found:
            if spark_job is None or running.spark_job.id == spark_job:
                running.cancel()

    @property
    def is_idle(self) -> bool:
        """True if no worker is left; the last ones end a moment after their job."""
        with self._lock:
            return not self._launched

    def close(self) -> None:
        """Forget everything, without waiting; the executors are ended by `close_executors`."""
        with self._lock:
            self._launched.clear()

    def close_executors(self) -> None:
        """Kill all executors and their workers, of which none is started again; idempotent."""
        with self._lock:
            self._is_closed = True
        for executor in self.executors:
            executor.close()

    def start_worker(self, work: bytes, number: int, ended: Ended) -> tuple[Executor, int]:
        """Start an attempt of a worker: its executor and its key there. Dead executors are replaced first."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the executors were closed")
            for place, executor in enumerate(self.executors):
                if executor.is_dead:
                    executor.close()
                    self.executors[place] = self._nursery.start_executor()
            executor = min(self.executors, key=lambda executor: executor.load)
            return executor, executor.run(work, number, next(self._attempts), ended)

    def returned(self, job: str, spark_job: SparkJobId) -> None:
        """A Spark job is over."""
        with self._lock:
            self._launched.pop((job, spark_job), None)


class _Launched:
    """The workers of one launch; `run` on a thread of its own."""

    def __init__(
        self, launcher: ProcessLauncher, request: LaunchRequest, spark_job: SparkJob, payload: ProcessPayload
    ) -> None:
        self.spark_job = spark_job
        self._launcher = launcher
        self._request = request
        self._payload = payload
        self._events: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._running: dict[int, tuple[Executor, int]] = {}
        self._lock = threading.Lock()
        self._stopped = ""

    def run(self) -> None:
        """Run the workers to their ends and tell how it went."""
        error, cancelled = None, False
        try:
            error = self._run()
            cancelled = error == _CANCELLED
        except Exception as failure:  # noqa: BLE001 - the JobMaster must hear of it
            error = f"{type(failure).__name__}: {failure}"
        finally:
            job = self._request.submission.job
            self._launcher.returned(job, self.spark_job.id)
            self._request.returned(SparkJobReturned(job, self.spark_job.id, error, cancelled))

    def cancel(self, why: str = "") -> None:
        """Kill the workers; none is started again."""
        with self._lock:
            self._stopped = self._stopped or why or _CANCELLED
            for executor, key in self._running.values():
                executor.stop(key)

    def _run(self) -> str | None:
        if self.spark_job.vertex is not None:
            return "a vertex that reads a DataFrame needs Spark"
        work = self._payload.work(self._request.graph, self.spark_job)
        failures: dict[int, int] = dict.fromkeys(self.spark_job.workers, 0)
        for worker in self.spark_job.workers:
            self._start(work, worker)
        while self._running:
            number, code = self._events.get()
            with self._lock:
                del self._running[number]
            failures[number] += code != 0
            if failures[number] >= WORKER_FAILURES:
                self.cancel(f"worker {number} ended {WORKER_FAILURES} times, the last time with exit code {code}")
            elif code != 0:
                self._start(work, number)
        return self._stopped or None

    def _start(self, work: bytes, number: int) -> None:
        with self._lock:
            if not self._stopped:
                self._running[number] = self._launcher.start_worker(
                    work, number, lambda code: self._events.put((number, code))
                )


_CANCELLED = "the workers were cancelled"


def serve_nursery(arguments: Sequence[str]) -> None:
    """The nursery's own process: the number of its socket, and what to import."""
    control = socket.socket(fileno=int(arguments[0]))
    for name in arguments[1:]:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for executors
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _serve_executor(descriptors[0])
        os.close(descriptors[0])


def _serve_executor(descriptor: int) -> None:
    """An executor's process; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    connection = Connection(descriptor)
    connection.send(os.getpid())
    pids: dict[int, int] = {}
    ends: dict[int, int] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            for ready in wait([connection, *ends]):
                if ready is connection:
                    _obey(connection, pids, ends)
                elif isinstance(ready, int):
                    key = ends.pop(ready)
                    os.close(ready)
                    _, status = os.waitpid(pids.pop(key), 0)
                    connection.send((key, os.waitstatus_to_exitcode(status)))
    os.killpg(0, signal.SIGKILL)


def _obey(connection: Connection, pids: dict[int, int], ends: dict[int, int]) -> None:
    key, work, number, attempt = connection.recv()
    if not work:
        if key in pids:
            os.kill(pids[key], signal.SIGKILL)
        return
    pid = os.fork()
    if pid == 0:
        connection.close()
        for descriptor in ends:
            os.close(descriptor)
        _work(work, number, attempt)
    pids[key] = pid
    ends[os.pidfd_open(pid)] = key


def _work(work: bytes, number: int, attempt: int) -> None:
    """A worker's process; never returns."""
    code = 1
    try:
        pickle.loads(work)(number, attempt)  # noqa: S301 - from the parent, over its own socket pair
        code = 0
    except BaseException:  # noqa: BLE001 - a process has no caller to raise to
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
