# SPDX-License-Identifier: Apache-2.0
"""The system's limits for an environment: more than those of the worker that started it, and errors beyond."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_harness import wait_for_end
from penstock.attachment.attachment import Attachment, attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.connection.unauthenticated import MOST_OF_ONE
from penstock.link.calls import GetStatistics
from penstock.link.commands import Shutdown
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until

SECRET = b"a secret of the tests"
STARTER = """
import ctypes, os, resource, sys
if len(sys.argv) == 5:  # once more, without the right to raise hard limits, which counts from the next program on
    ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "limited"])
from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch
kind, soft, hard, conf = sys.argv[1:5]
kind = getattr(resource, kind)
resource.setrlimit(kind, (int(soft), int(hard) if int(hard) >= 0 else resource.getrlimit(kind)[1]))
launch = EnvironmentLaunch("limits", b"a secret of the tests", "", dict([conf.split("=")]))
attach(launch).close()
"""
CONF = "spark.penstock.environment.leaseTimeout=20s"
"""One setting, by which the place is the same for whoever attaches."""


def start(kind: str, soft: int, hard: int = -1, conf: str = CONF) -> subprocess.CompletedProcess[str]:
    """Start an environment from a process with this limit, which may not raise a hard one."""
    command = [sys.executable, "-c", STARTER, kind, str(soft), str(hard), conf]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


@pytest.fixture
def attachment() -> Iterator[list[Attachment]]:
    """A list whose attachments' environments are told to end after the test, and waited for."""
    made: list[Attachment] = []
    yield made
    for each in made:
        ended = os.pidfd_open(pid_of(each))
        each.ask(Shutdown(), DEADLINE)
        each.close()
        wait_for_end(ended)


def launch() -> EnvironmentLaunch:
    """The launch by which the environment that was started is found."""
    key, _, value = CONF.partition("=")
    return EnvironmentLaunch("limits", SECRET, "", {key: value})


def attached() -> Attachment:
    """To the environment that was started."""
    return attach(launch())


def pid_of(attachment: Attachment) -> int:
    """The environment's process."""
    return int(attachment.environment.rsplit("-", 2)[1])


def limit_of(pid: int, name: str) -> str:
    """A soft limit of a process."""
    (line,) = [line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith(name)]
    return line.removeprefix(name).split()[0]


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_soft_limits_of_the_first_worker_are_lifted(attachment: list[Attachment]) -> None:
    """Started by a process with little address space and few files: it has what the hard limit allows."""
    started = start("RLIMIT_AS", 3 << 30)
    assert started.returncode == 0, started.stderr
    attachment.append(attached())
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    assert limit_of(pid_of(attachment[0]), "Max address space") == ("unlimited" if hard < 0 else str(hard))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert limit_of(pid_of(attachment[0]), "Max open files") == str(min(files, 1 << 20) if files > 0 else 1 << 20)


def test_too_little_address_space_is_said() -> None:
    """A hard limit can't be lifted: the environment does not start, and the task says which setting does that."""
    conf = "spark.penstock.network.memory=2g"
    started = start("RLIMIT_AS", 2 << 30, 2 << 30, conf)
    assert started.returncode != 0
    assert "could not start" in started.stderr
    assert "2048 MB of address space" in started.stderr
    assert "spark.executor.pyspark.memory" in started.stderr


def test_out_of_descriptors(attachment: list[Attachment]) -> None:
    """More connect than it may have files: it waits without turning in circles, and goes on when some have left."""
    started = start("RLIMIT_NOFILE", 48, 48)
    assert started.returncode == 0, started.stderr
    attachment.append(attached())
    pid, log = pid_of(attachment[0]), launch().place().log
    strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MOST_OF_ONE)]
    for stranger in strangers:
        stranger.connect(str(launch().place().socket))
    wait_until(lambda: "until something comes free" in log.read_text(), "it is out of descriptors")
    cpu, size, began = cpu_seconds(pid), log.stat().st_size, time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1.5, "a while has passed")
    assert cpu_seconds(pid) - cpu < 0.5
    assert log.stat().st_size - size < 4096
    for stranger in strangers:
        stranger.close()
    later = attached()
    assert later.ask(GetStatistics(), DEADLINE).figures["tasks"] >= 2
    later.close()


def test_silent_connections_lock_no_task_out(attachment: list[Attachment]) -> None:
    """Of those that one process holds and does not prove, the first ones go: there is always room for a task."""
    attachment.append(attached())
    strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MOST_OF_ONE + 8)]
    for stranger in strangers:
        stranger.connect(str(launch().place().socket))
    assert strangers[0].recv(1) == b""
    later = attached()
    assert later.ask(GetStatistics(), DEADLINE).figures["tasks"] <= MOST_OF_ONE + 2
    later.close()
    for stranger in strangers:
        stranger.close()
