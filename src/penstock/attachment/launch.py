# SPDX-License-Identifier: Apache-2.0
"""Finds this host's environment process, or starts it.

The first task that finds no process takes the rendezvous lock, starts the process with the lock inherited, and waits
for its word that it listens; the others wait for the socket. A driver beside its tasks does so ahead of them. The
process detaches itself (new session, orphaned on purpose), so that neither a task's end nor Spark's killing of a
worker's process group takes it along. The secret goes through a pipe, never through arguments or the environment
block.

An environment whose pulse has stood for the lease's time is killed by the task that finds it so, and another one
takes its place. One that can't be killed, because it waits for a dead disk, keeps its folder under another name.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from penstock.connection.certificate import Certificate
from penstock.errors import EnvironmentLostError, SettingError
from penstock.link.kept_logs import link_log, sweep_logs
from penstock.link.pulse import BEAT_SECONDS, PulseWatch, end_peer
from penstock.link.rendezvous import Rendezvous, rendezvous, sweep
from penstock.settings import Settings
from penstock.shuffle import load_service

log = logging.getLogger("penstock.task")

_RETRY_SECONDS = 0.005
_REVIVAL_SECONDS = 4 * BEAT_SECONDS
_WORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class EnvironmentLaunch:
    """The facts by which a task reaches or starts its host's environment process; travels in Spark's closure.

    `master` is the JobMaster's `host:port`, or empty for an environment without a JobMaster (tests, tools).
    `scope_key` is empty for one environment per host, else it names the executor.
    """

    application: str
    secret: bytes
    master: str
    settings: dict[str, str]
    scope_key: str = ""
    certificate: Certificate | None = None
    """The one that the driver has made for its application, where anything of it leaves loopback."""
    title: str = ""
    """The name that its user gave the application."""

    def __repr__(self) -> str:
        """Everything but the secret, and the certificate's key."""
        return f"EnvironmentLaunch({self.application!r}, master={self.master!r}, scope_key={self.scope_key!r})"

    def place(self) -> Rendezvous:
        """The rendezvous folder."""
        directory = Settings.from_conf(self.settings).environment.directory
        return rendezvous(self.application, self.scope_key, directory)


def connect_or_start(launch: EnvironmentLaunch) -> socket.socket:
    """A connected Unix socket, not yet authenticated; raises EnvironmentLostError with the log's last lines."""
    place = launch.place()
    place.make()
    settings = Settings.from_conf(launch.settings).environment
    limit = settings.start_timeout
    deadline = time.monotonic() + limit
    while True:
        connection = _connect(place)
        if connection is not None:
            if not _has_stopped(place, settings.lease_timeout):
                return connection
            replace_environment(place, connection)
            connection.close()
            continue
        lock = place.take_lock()
        if lock is not None:
            try:
                _start(launch, place, lock, deadline)
            finally:
                os.close(lock)
        elif time.monotonic() > deadline:
            raise EnvironmentLostError(
                f"the environment process of this host did not answer on {place.socket} within {limit:.0f} s"
                f" (spark.penstock.environment.startTimeout).{_last_lines(place)}"
            )
        else:
            time.sleep(_RETRY_SECONDS)


def start_early(launch: EnvironmentLaunch, variables: Mapping[str, str]) -> None:
    """Start this host's environment process if none runs, with these variables beside this process's own.

    For a driver whose tasks run beside it: they find it there, or about to be. Raises EnvironmentLostError as
    `connect_or_start` does, which the first task then does once more.
    """
    place = launch.place()
    place.make()
    lock = place.take_lock()
    if lock is not None:
        try:
            deadline = time.monotonic() + Settings.from_conf(launch.settings).environment.start_timeout
            _start(launch, place, lock, deadline, variables)
        finally:
            os.close(lock)


def replace_environment(place: Rendezvous, connection: socket.socket) -> None:
    """End the environment that listens at the other end, for good: its pulse stands."""
    log.warning(
        "the environment process of this host has not run for the time of its lease"
        " (spark.penstock.environment.leaseTimeout): it is killed, and another one takes its place"
    )
    try:
        lock = place.lock.stat()
    except FileNotFoundError:
        return  # another task was faster
    if not end_peer(connection):
        place.set_aside(lock)


def _has_stopped(place: Rendezvous, lease: float) -> bool:
    """Tell whether its pulse stands; one that comes back with its host, after a pause of both, has time to beat."""
    if PulseWatch(place.pulse, lease).age <= lease:
        return False
    time.sleep(_REVIVAL_SECONDS)
    return PulseWatch(place.pulse, lease).age > lease


def _connect(place: Rendezvous) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)  # where too many wait already, one more would wait without end
        connection.connect(str(place.socket))
        connection.setblocking(True)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def _start(
    launch: EnvironmentLaunch,
    place: Rendezvous,
    lock: int,
    deadline: float,
    variables: Mapping[str, str] | None = None,
) -> None:
    place.clear()
    settings = Settings.from_conf(launch.settings)
    sweep(settings.environment.directory, keep=place.folder)
    if settings.observe.keep_output:
        sweep_logs(settings.environment.directory)
        link_log(place.log, launch.application, settings.environment.directory, launch.title)
    config = msgpack.packb(
        {
            "application": launch.application,
            "secret": launch.secret,
            "certificate": None if launch.certificate is None else launch.certificate.to_wire(),
            "master": launch.master,
            "settings": launch.settings,
            "folder": str(place.folder),
            "serves": _serves(launch),
            "lock": lock,
        }
    )
    read_end, write_end = os.pipe()
    try:
        with place.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.environment", launch.application],
                stdin=subprocess.PIPE,
                stdout=write_end,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
                cwd="/",
                env={**os.environ, **(variables or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        os.close(write_end)
        write_end = -1
        try:
            process.communicate(config, timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # it has the lock, and would keep all other tasks from a start
            process.wait()
        _await_word(read_end, place, deadline)
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def _serves(launch: EnvironmentLaunch) -> bool:
    """Tell whether the session's service has the environments serve each other from their start on."""
    try:
        return load_service(Settings.from_conf(launch.settings).shuffle.service).capabilities.uses_data_plane
    except SettingError:
        return True  # the task says it better, where it needs the service


def _await_word(read_end: int, place: Rendezvous, deadline: float) -> None:
    import select

    readable, _, _ = select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))
    word = os.read(read_end, _WORD_BYTES) if readable else b""
    if word[:1] != b"+":
        why = f" {word[1:].decode(errors='replace')}" if word else _last_lines(place)
        late = " in time (spark.penstock.environment.startTimeout)" if time.monotonic() >= deadline else ""
        raise EnvironmentLostError(f"the environment process of this host could not start{late}.{why}")


def _last_lines(place: Rendezvous) -> str:
    try:
        text = place.log.read_text(errors="replace").strip()
    except OSError:
        return ""
    return f" Its log ends with:\n{os.linesep.join(text.splitlines()[-20:])}" if text else ""
