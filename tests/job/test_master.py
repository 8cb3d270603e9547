# SPDX-License-Identifier: Apache-2.0
"""The JobMaster over real connections: environments, tasks, results, and a close that leaves nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from effort import examples
from job_fakes import DEADLINE, FakeEnvironment, Task, ThreadLauncher, fresh_service, run_well
from job_graphs import SERVICE, pipeline
from master_client import MasterClient, shaken
from penstock.connection.frames import frame
from penstock.connection.handshake import MAGIC, VERSION, Service
from penstock.errors import (
    AuthenticationError,
    ControlError,
    EnvironmentLostError,
    FailureKind,
    JobCancelledError,
    JobError,
    PartitionExpiredError,
    ProtocolError,
    SlotsError,
    StaleError,
    TaskCancelledError,
)
from penstock.graph.deployment import TaskDeployment
from penstock.graph.job_graph import JobGraph, KeptBy
from penstock.job.core.execution.capacity import SlotsReturnedError
from penstock.job.core.result import JobResult
from penstock.job.core.states import JobState
from penstock.job.launcher import Submission
from penstock.job.shell.master import JobHandle, JobMaster, MasterIdentity, _repeat
from penstock.link.commands import (
    CancelTask,
    Command,
    ExpirePartitions,
    ReleaseJob,
    ReleasePartitions,
    Shutdown,
    UpdatePartitionInfo,
)
from penstock.link.control import raise_for_error
from penstock.link.frames import LinkFrameType
from penstock.link.master import (
    AcknowledgeCheckpoint,
    AwaitProducers,
    Heartbeat,
    OpenResult,
    PartitionConsumable,
    TaskEnd,
    TaskFinished,
    TaskLost,
)
from penstock.link.wire import Plain
from penstock.settings import Settings
from penstock.shuffle import AttemptId, DatasetId, PartitionId, PartitionKind
from penstock.testing import wait_until

SECRET = b"s" * 32


class Rig:
    """A JobMaster, its launcher and one environment."""

    def __init__(self, conf: dict[str, str] | None = None) -> None:
        self.settings = Settings.from_conf({"spark.penstock.shuffle.service": SERVICE, **(conf or {})})
        self.launcher = ThreadLauncher(self._run_task)
        self.task: Task = run_well
        self.master = JobMaster(MasterIdentity("app", SECRET), self.launcher, self.settings)
        self.address = self.master.start()
        self.environment = FakeEnvironment(self.address, SECRET, "env-1")
        self.launcher.environment = self.environment

    def _run_task(self, environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        self.task(environment, deployment)

    def submission(self, graph: object = None, slots: int = 8) -> Submission:
        """A job with an id."""
        return Submission(self.master.new_job(), graph or pipeline(), self.settings, slots)  # type: ignore[arg-type]

    def run(self, graph: object = None) -> JobResult:
        """Run a job to its end."""
        return self.master.submit(self.submission(graph)).wait(DEADLINE).result

    def hang_up(self, environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        """A task whose environment goes away; it ends when the JobMaster knows."""
        environment.client.cut()
        wait = threading.Event()
        for _ in range(int(DEADLINE * 100)):
            progress = self.master.job_progress(deployment.attempt.job)
            if progress is not None and progress.state is JobState.FAILING:
                return
            wait.wait(0.01)

    def close(self) -> None:
        """Close all."""
        self.master.close()
        self.environment.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A fresh rig, closed at the end."""
    fresh_service()
    rig = Rig()
    yield rig
    rig.close()


def test_a_job_from_its_submission_to_its_end(rig: Rig) -> None:
    """Tasks register, get deployments, end; the result has figures and the order of events in its trace."""
    rig.task = _tell_first_buffer
    result = rig.run()
    assert result.state is JobState.FINISHED
    assert result.metrics == {0: {"rows_out": 6.0}, 1: {"rows_out": 6.0}}
    first = {name: seconds for seconds, name, _ in reversed(result.trace)}
    assert first["task_deployed"] <= first["partition_consumable"] <= first["partition_info_updated"]
    updates = rig.environment.wait_for(UpdatePartitionInfo, 4)
    assert {update.descriptor.partition.index for update in updates} == {0, 1}
    assert rig.environment.wait_for(ReleasePartitions)
    assert rig.environment.wait_for(ReleaseJob)


def _tell_first_buffer(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
    for output in deployment.outputs:
        environment.ask(PartitionConsumable(output.descriptor.partition))
    if deployment.attempt.vertex == 1:
        environment.wait_for(UpdatePartitionInfo, 4)
    environment.finished(deployment.attempt)


def test_shuffle_master_is_driven_in_order(rig: Rig) -> None:
    """The service is started once, told of each job, and closed last."""
    service = fresh_service()
    rig.run()
    rig.run()
    rig.close()
    jobs = [item for item in service.story if item.startswith(("register", "unregister"))]
    assert jobs == ["register j1", "unregister j1", "register j2", "unregister j2"]
    assert service.story[:2] == ["create", "start"]
    assert service.story[-1] == "close"
    assert service.story.count("start") == 1


def test_a_job_is_over_for_a_service_when_its_partitions_are_released(rig: Rig) -> None:
    """The job itself ends before: whoever waits for its rows does not wait for a release that takes long."""
    service = fresh_service()
    gate = service.gate = threading.Event()
    gate.set()

    def run_and_shut(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        gate.clear()  # all that tasks write is registered before one of them runs
        run_well(environment, deployment)

    rig.task = run_and_shut
    rig.run()
    wait_until(lambda: service.story[-1].startswith("release "), "a partition is being released")
    assert rig.master.job_progress("j1") is None  # whatever was ready on the JobMaster's loop has run
    assert service.story[-1].startswith("release ")
    gate.set()
    wait_until(lambda: service.story[-1] == "unregister j1", "the service hears that the job is over")
    assert [entry.partition(" ")[0] for entry in service.story[-5:]] == [*["release", "released"] * 2, "unregister"]


def test_refused_partition_fails_the_job(rig: Rig) -> None:
    """The words of the service are in the job's error."""
    fresh_service().fail_registration = True
    with pytest.raises(JobError, match="the service is full"):
        rig.run()


def test_user_error_reaches_the_caller(rig: Rig) -> None:
    """The task's text is in the error; the others are told to stop through their environment."""

    def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        if (deployment.attempt.vertex, deployment.attempt.subtask) == (0, 0):
            environment.finished(
                deployment.attempt, TaskEnd.FAILED, 'File "user.py", line 3: boom', FailureKind.CAUSE
            )
            return
        environment.wait_for(CancelTask, 3)
        environment.finished(deployment.attempt, TaskEnd.CANCELED)

    rig.task = task
    with pytest.raises(JobError, match=r"File \"user.py\", line 3: boom \(source, subtask 0 of 2 on env-1\)"):
        rig.run()
    assert not rig.launcher.cancelled


def test_cancel_from_outside(rig: Rig) -> None:
    """A handle's cancel stops the tasks and raises JobCancelledError with the reason."""
    running = threading.Barrier(5)

    def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        running.wait(DEADLINE)
        environment.wait_for(CancelTask, 4)
        environment.finished(deployment.attempt, TaskEnd.CANCELED)

    rig.task = task
    handle = rig.master.submit(rig.submission())
    running.wait(DEADLINE)
    progress = handle.progress()
    assert progress is not None
    assert [item.running for item in progress.vertices] == [2, 2]
    handle.cancel("no longer wanted")
    with pytest.raises(JobCancelledError, match="no longer wanted"):
        handle.wait(DEADLINE)
    assert handle.progress() is None


def test_progress_comes_from_heartbeats(rig: Rig) -> None:
    """A heartbeat's word of a task shows in the snapshot while the task runs."""
    running, go = threading.Barrier(5), threading.Event()

    def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        environment.ask(Heartbeat(environment.name, {}, ((deployment.attempt, {"rows_out": 7.0}),)))
        running.wait(DEADLINE)
        go.wait(DEADLINE)
        environment.finished(deployment.attempt)

    rig.task = task
    handle = rig.master.submit(rig.submission())
    running.wait(DEADLINE)
    progress = handle.progress()
    go.set()
    assert progress is not None
    assert progress.vertices[1].metrics == {"rows_out": 14}
    assert handle.wait(DEADLINE).result.state is JobState.FINISHED


def test_too_many_slots_are_refused(rig: Rig) -> None:
    """Nothing is launched."""
    with pytest.raises(SlotsError, match="needs 4 task slots"):
        rig.master.submit(rig.submission(slots=2)).wait(DEADLINE)
    assert rig.launcher.launched == []


def lost_its_slots(rig: Rig) -> JobHandle:
    """A job of four tasks that was planned anew for the two slots that are left."""
    return rig.master.submit(replace(rig.submission(slots=2), may_wait=True))


def test_a_job_waits_for_its_slots_and_is_over_when_they_are_there(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once, and nothing is launched: it is planned for what came back by whoever submitted it."""
    handle = lost_its_slots(rig)
    rig.master.set_slots(2)
    rig.master.set_slots(3)
    progress = handle.progress()
    assert progress is not None
    assert "3 of 4 are there" in progress.title
    rig.master.set_slots(4)
    with pytest.raises(SlotsReturnedError, match="4 task slots are there"):
        handle.wait(DEADLINE)
    assert rig.launcher.launched == []
    assert len([record for record in caplog.records if "waits for them to come back" in record.getMessage()]) == 1
    assert rig.run().state is JobState.FINISHED


def test_a_wait_for_slots_ends_in_time() -> None:
    """After `slotsTimeout`, which the error names."""
    fresh_service()
    rig = Rig({"spark.penstock.job.slotsTimeout": "200ms"})
    try:
        with pytest.raises(SlotsError, match=r"waited 0.2 s .* it needs 4, and 2 are there"):
            lost_its_slots(rig).wait(DEADLINE)
    finally:
        rig.close()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_wait_for_slots_ends_at_once_where_nobody_wants_the_job(rig: Rig, *, stopped: bool) -> None:
    """The user cancels it, or the session is stopped."""
    handle = lost_its_slots(rig)
    if stopped:
        rig.master.close()
    else:
        handle.cancel("interrupted")
    with pytest.raises(JobCancelledError, match="the application is stopping" if stopped else "interrupted"):
        handle.wait(0 if stopped else DEADLINE)


def test_missing_task_ends_at_the_deadline() -> None:
    """Three of four come: the job ends with `3 of 4 slots` and those that came are answered."""
    fresh_service()
    rig = Rig({"spark.penstock.job.slotsTimeout": "200ms"})
    try:
        rig.launcher.absent = {3}
        with pytest.raises(SlotsError, match="3 of 4 slots obtained"):
            rig.run()
    finally:
        rig.close()


def test_result_runs_when_opened_and_once(rig: Rig) -> None:
    """Nothing runs before somebody opens it; all who open it share one job."""
    graph = pipeline(result=True)
    rig.master.add_result("r1", lambda: rig.submission(graph))
    assert rig.launcher.launched == []
    partitions, size = rig.master.open_result("r1")
    assert rig.master.open_result("r1") == (partitions, size)
    assert rig.environment.ask(OpenResult("r1")).partitions == partitions, "a task may ask for it, too"
    assert [(str(item.partition.dataset), item.partition.index) for item in partitions] == [
        ("j1-result1", 0),
        ("j1-result1", 1),
    ]
    assert rig.launcher.launched == ["j1"]


def test_failed_result_runs_again(rig: Rig) -> None:
    """The planner gets the job's error, and the next opening is a new job."""
    graph = pipeline(result=True)
    rig.master.add_result("r1", lambda: rig.submission(graph))
    rig.task = _fail
    with pytest.raises(JobError, match="boom"):
        rig.master.open_result("r1")
    rig.task = run_well
    assert len(rig.master.open_result("r1")[0]) == 2
    assert rig.launcher.launched == ["j1", "j2"]


def _fail(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
    environment.finished(deployment.attempt, TaskEnd.FAILED, "boom", FailureKind.CAUSE)


def test_plan_error_reaches_who_opens_the_result(rig: Rig) -> None:
    """An error of planning comes out with its type; an unknown result has its own answer."""

    def build() -> Submission:
        raise SlotsError("no executor has registered")

    rig.master.add_result("r1", build)
    for opened in (rig.master.open_result, lambda name: rig.environment.ask(OpenResult(name))):
        with pytest.raises(SlotsError, match="no executor"):
            opened("r1")
        with pytest.raises(PartitionExpiredError, match="r9"):
            opened("r9")


def test_unopened_result_expires() -> None:
    """A result whose opener went away expires at the end of its lease; opened ones stay."""
    fresh_service()
    rig = Rig({"spark.penstock.job.resultLease": "100ms"})
    try:
        running, go = threading.Event(), threading.Event()

        def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
            running.set()
            go.wait(DEADLINE)
            environment.finished(deployment.attempt)

        rig.task = task
        graph = pipeline(result=True)
        rig.master.add_result("r1", lambda: rig.submission(graph))
        opening = asyncio.run_coroutine_threadsafe(rig.master._results.open("r1"), rig.master._loop)
        assert running.wait(DEADLINE)
        opening.cancel()
        go.set()
        (expired,) = rig.environment.wait_for(ExpirePartitions)
        assert {item.dataset for item in expired.partitions} == {DatasetId("j1", 1, is_result=True)}
    finally:
        rig.close()


def test_a_persistent_result_has_no_lease() -> None:
    """It stays until whoever asked for it releases it, where one that ended after it expires unopened."""
    fresh_service()
    rig = Rig({"spark.penstock.job.resultLease": "100ms"})
    try:

        async def run(graph: JobGraph) -> None:
            await rig.master._run_for_result(rig.submission(graph))

        for kind in (PartitionKind.BLOCKING_PERSISTENT, PartitionKind.HYBRID_FULL):
            graph = replace(pipeline(result=True), kept_by=KeptBy("local", kind))
            asyncio.run_coroutine_threadsafe(run(graph), rig.master._loop).result(DEADLINE)
        (expired,) = rig.environment.wait_for(ExpirePartitions)
        assert {item.job for item in expired.partitions} == {"j2"}
    finally:
        rig.close()


def test_lost_environment_fails_the_job_and_makes_its_results_run_again() -> None:
    """The end of its connection, where no process is, is that of the environment, its tasks and its results."""
    fresh_service()
    rig = Rig({"spark.penstock.restart.strategy": "none"})
    graph = pipeline(result=True)
    rig.master.add_result("r1", lambda: rig.submission(graph))
    rig.master.open_result("r1")
    rig.task = rig.hang_up
    with pytest.raises(JobError, match="environment env-1 is lost"):
        rig.run()
    again = FakeEnvironment(rig.address, SECRET, "env-2")
    rig.launcher.environment, rig.task = again, run_well
    rig.master.open_result("r1")
    again.close()
    rig.close()
    assert rig.launcher.launched == ["j1", "j2", "j3"]


def test_job_goes_on_with_another_environment(rig: Rig) -> None:
    """The tasks of a lost environment run again in a new one, with their rows' readers, and the job ends well."""
    again = FakeEnvironment(rig.address, SECRET, "env-2")
    first = threading.Lock()

    def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        if environment is again:
            run_well(environment, deployment)
        elif first.acquire(blocking=False):
            rig.launcher.environment = again
            environment.client.cut()
        else:
            assert environment.ended.wait(DEADLINE)

    rig.task = task
    result = rig.run()
    again.close()
    assert result.state is JobState.FINISHED
    assert len(result.trace_of("restart")) == 1
    assert len(result.trace_of("task_restarted")) == 4
    assert rig.launcher.launched == ["j1", "j1"]


def test_workers_that_never_come_end_the_job(rig: Rig) -> None:
    """Their Spark job returns as if all were well, but nobody asked for work: not tried for ever, and said so."""
    rig.launcher.absent = set(range(1000))
    with pytest.raises(JobError, match="its tasks never came"):
        rig.run()
    assert 1 < len(rig.launcher.launched) < 10


def test_silent_environment_is_lost() -> None:
    """No heartbeat for the lease's time is an end, too; its name is never taken again."""
    fresh_service()
    rig = Rig({"spark.penstock.environment.leaseTimeout": "200ms", "spark.penstock.restart.strategy": "none"})
    try:
        rig.task = _fall_silent
        with pytest.raises(JobError, match=r"no heartbeat for 0.2 s"):
            rig.run()
        assert rig.environment.ended.wait(DEADLINE), "it is hung up on"
        with pytest.raises(EnvironmentLostError):
            FakeEnvironment(rig.address, SECRET, "env-1")
    finally:
        rig.close()


def _fall_silent(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
    assert environment.ended.wait(DEADLINE)


def test_who_does_not_know_the_secret_is_hung_up_on(rig: Rig) -> None:
    """Before anything is asked; an environment may make the calls of environments, and no others."""
    with pytest.raises(AuthenticationError, match="closed the connection during authentication"):
        shaken(rig.address, b"x" * 32, "me")
    with pytest.raises(ProtocolError, match="there is no call Challenge for an environment"):
        raise_for_error(rig.environment.client.call("Challenge", {}).result(DEADLINE))


def test_another_door_is_not_this_one(rig: Rig) -> None:
    """A peer that knows the secret, and wants partitions or a task's memory, is at the wrong address."""
    for service in (Service.TASKS, Service.PARTITIONS):
        with pytest.raises((AuthenticationError, EnvironmentLostError)):
            shaken(rig.address, SECRET, "me", service)


WORDS = (b"", b"GET / HTTP/1.1\r\n\r\n" * 8, MAGIC + bytes([VERSION]), bytes(64), MAGIC + b"\xff" * 300)


def test_ten_thousand_bad_connections_leave_no_growth(rig: Rig) -> None:
    """Silent, cut, garbage, half a handshake: refused one after the other, while the JobMaster works on."""
    host, port = rig.address.split(":")

    def come(count: int) -> None:
        open_ones: deque[socket.socket] = deque()
        for number in range(count):
            open_ones.append(socket.create_connection((host, int(port)), DEADLINE))
            with contextlib.suppress(ConnectionError):
                open_ones[-1].sendall(WORDS[number % len(WORDS)])
            if len(open_ones) > 100:
                open_ones.popleft().close()
        for connection in open_ones:
            connection.close()

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    come(1_000)
    before = resident()
    come(examples(10_000))
    wait_until(lambda: rig.master._server.unauthenticated == 0, "all are gone")
    assert resident() - before < 4 << 20
    assert rig.run().state is JobState.FINISHED


def test_a_large_message_goes_through_and_a_larger_one_is_refused(rig: Rig) -> None:
    """Tens of megabytes are no matter; over the limit the sender is told, and the connection lives."""
    handle = bytes(40 << 20)
    attempt = AttemptId("j1", 0, 0, 1)
    rig.environment.ask(AcknowledgeCheckpoint(attempt, 1, handle))
    with pytest.raises(ProtocolError, match="is the limit"):
        rig.environment.ask(AcknowledgeCheckpoint(attempt, 1, handle + handle))
    assert rig.run().state is JobState.FINISHED


def test_garbage_is_answered(rig: Rig) -> None:
    """A message of another shape gets a ProtocolError, and the JobMaster lives on."""
    client = rig.environment.client
    messages: tuple[Plain, ...] = (
        *({}, {"attempt": "x"}, {"attempt": (1, 2)}),
        {"attempt": ("j", 0, 0, 1), "state": "NONSENSE"},
    )
    for message in messages:
        with pytest.raises(ProtocolError):
            raise_for_error(client.call(TaskFinished.METHOD, message).result(DEADLINE))
    assert rig.run().state is JobState.FINISHED


@pytest.mark.parametrize(
    "data", [b"\xff" * 40, frame(99), frame(LinkFrameType.CALL, b"\0"), frame(LinkFrameType.CALL, b"\0" * 9)]
)
def test_frames_that_are_none_end_the_connection(rig: Rig, data: bytes) -> None:
    """And nothing else: it is not known any more where the next one would begin."""
    with shaken(rig.address, SECRET, "env-9") as connection:
        connection.sendall(data)
        assert connection.recv(1) == b""
    assert rig.run().state is JobState.FINISHED


def test_it_listens_where_it_was_told() -> None:
    """At a fixed port of an IPv6 address; a second one is refused the port, and says which settings are meant."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
    launcher = ThreadLauncher(run_well)
    master = JobMaster(MasterIdentity("app", SECRET, "::1", "::1", port), launcher)
    try:
        assert master.start() == f"[::1]:{port}"
        client = MasterClient(master.address, SECRET, "me")
        with pytest.raises(PartitionExpiredError):
            client.ask(OpenResult("r9"))
        client.cut()
        second = JobMaster(MasterIdentity("app", SECRET, "::1", "::1", port), launcher)
        with pytest.raises(ControlError, match=r"spark\.penstock\.driver\.port"):
            second.start()
    finally:
        master.close()


def test_environment_speaks_only_for_itself(rig: Rig) -> None:
    """It can't call in another environment's name."""
    with pytest.raises(AuthenticationError, match="spoke for"):
        rig.environment.ask(Heartbeat("env-2"))


def test_close_leaves_nothing(rig: Rig) -> None:
    """A running job is cancelled, environments are told to shut down, later calls get an error; twice is once."""
    registered = threading.Event()

    def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        registered.set()
        environment.wait_for(CancelTask, 4)
        environment.finished(deployment.attempt, TaskEnd.CANCELED)

    rig.task = task
    rig.environment.stays = True
    handle = rig.master.submit(rig.submission())
    assert registered.wait(DEADLINE)
    rig.master.close()
    rig.master.close()
    with pytest.raises(JobCancelledError, match="the application is stopping"):
        handle.wait(DEADLINE)
    assert rig.environment.wait_for(Shutdown)
    assert rig.environment.ended.wait(DEADLINE)
    with pytest.raises(ControlError, match="closed"):
        rig.master.submit(rig.submission())
    with pytest.raises(ControlError, match="closed"):
        rig.master.checkpoint(handle.job, DEADLINE)
    assert "penstock-jobmaster" not in {thread.name for thread in threading.enumerate()}


def test_a_host_whose_environments_are_told_to_end_has_not_failed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Three executors of one host: at the end of the application nobody is warned that it keeps losing them."""
    others = [FakeEnvironment(rig.address, SECRET, f"h-{number}-x") for number in range(3)]
    rig.master.close()
    for other in others:
        assert other.wait_for(Shutdown)
        assert other.ended.wait(DEADLINE)
        other.close()
    assert not [record for record in caplog.records if "has lost its environment" in record.getMessage()]


def test_what_it_does_again_and_again_ends_without_a_word_when_the_interpreter_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No thread starts any more by then, which is nobody's fault; the JobMaster stays until it is closed."""

    async def run() -> bool:
        executor = concurrent.futures.ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(executor)
        executor.shutdown()  # as the interpreter does, and then it says the same of every new one
        again = asyncio.create_task(_repeat(0.0, lambda: None))
        for _ in range(10):
            await asyncio.sleep(0)
        stayed = not again.done()
        again.cancel()
        return stayed

    assert asyncio.run(run())
    assert not caplog.records


def test_wrong_server_is_found_out() -> None:
    """A server that does not know the secret is not trusted, although it would accept anything."""
    fresh_service()
    impostor = JobMaster(MasterIdentity("app", b"y" * 32), ThreadLauncher(run_well))
    address = impostor.start()
    try:
        with pytest.raises(AuthenticationError):
            shaken(address, SECRET, "me")
    finally:
        impostor.close()


def test_a_second_driver_listens_where_the_first_one_did(rig: Rig) -> None:
    """At once, although connections of the first one have just ended there; and none of them is let in."""
    port = int(rig.address.split(":")[1])
    rig.close()
    second = JobMaster(MasterIdentity("app", b"y" * 32, port=port), ThreadLauncher(run_well))
    try:
        assert second.start() == rig.address
        with pytest.raises(AuthenticationError):
            shaken(rig.address, SECRET, "env-1")
    finally:
        second.close()


def test_cancelled_task_error_is_what_a_relayed_call_raises(rig: Rig) -> None:
    """AwaitProducers of a job that is over is answered with a typed error, not with silence."""
    with pytest.raises((StaleError, TaskCancelledError)):
        rig.environment.ask(AwaitProducers(AttemptId("j9", 0, 0, 1)))


def test_an_instruction_that_fails_fails_its_job_and_keeps_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer can't be told of its producer: the job ends with that error, and its tasks are told to stop."""
    driver = rig.master._driver
    tell = driver.environments.tell

    def refuse(environment: str, command: Command) -> None:
        if isinstance(command, UpdatePartitionInfo):
            raise OSError("no such line")
        tell(environment, command)

    monkeypatch.setattr(driver.environments, "tell", refuse)
    stopped = threading.Event()

    def run(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        for output in deployment.outputs:
            environment.ask(PartitionConsumable(output.descriptor.partition))
        environment.wait_for(CancelTask)
        stopped.set()
        environment.finished(deployment.attempt, TaskEnd.CANCELED, "told to stop", FailureKind.CONSEQUENCE)

    rig.task = run
    with pytest.raises(JobError, match="UpdatePartitionInfo could not be carried out: OSError: no such line"):
        rig.run()
    assert stopped.is_set()
    monkeypatch.undo()
    rig.task = run_well
    assert rig.run(pipeline(1, 1)).state is JobState.FINISHED, "the JobMaster goes on"
    caplog.clear()  # its tracebacks hold the loop of the JobMaster


def test_a_watch_that_fails_ends_the_jobmaster_and_somebody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are watched no more: whoever waits for a job gets an error, and so does whoever comes later."""
    rig = Rig({"spark.penstock.environment.leaseTimeout": "2s"})
    begun = threading.Event()
    broken = threading.Event()

    def silent(_: float) -> list[object]:
        if begun.is_set():
            broken.set()
            raise OSError("no clock")
        return []

    def run(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        begun.set()
        environment.wait_for(CancelTask)
        environment.finished(deployment.attempt, TaskEnd.CANCELED, "told to stop", FailureKind.CONSEQUENCE)

    rig.task = run
    monkeypatch.setattr(rig.master._driver.environments, "silent_since", silent)
    try:
        with pytest.raises((JobCancelledError, ControlError), match="no clock"):
            rig.run()
        assert broken.is_set()
        thread = rig.master._thread
        assert thread is not None
        thread.join(DEADLINE)
        with pytest.raises(ControlError, match="no clock"):
            rig.master.submit(rig.submission())
    finally:
        rig.close()


def test_the_timers_of_a_job_are_those_it_waits_for(rig: Rig) -> None:
    """A deadline that nobody waits for any more has no timer: a long job does not gather them."""
    counts: list[list[str]] = []

    def run(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        timers = rig.master._driver._jobs[deployment.attempt.job].timers
        counts.append([deadline.kind for deadline in timers])
        run_well(environment, deployment)

    rig.task = run
    rig.run()
    assert counts == [[]] * 4, "slots were granted and all tasks came, so nothing is waited for"


def test_a_report_counts_once(rig: Rig) -> None:
    """Under a number that the JobMaster has had nothing is reported: the answer was lost."""
    lost: list[AttemptId] = []

    def task(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        environment.ask(TaskLost(deployment.attempt, "it was had before", 1))
        lost.append(deployment.attempt)
        environment.finished(deployment.attempt)

    rig.environment.ask(PartitionConsumable(PartitionId(DatasetId("j0", 0), 0, 1), 1))
    rig.task = task
    assert rig.run().state is JobState.FINISHED
    assert len(set(lost)) == 4
