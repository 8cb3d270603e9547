# SPDX-License-Identifier: Apache-2.0
"""The life of an environment process: it reads its configuration, listens, tells its starter, works, and cleans up.

The starter gives the configuration on standard input and the rendezvous lock as an inherited descriptor; it gets
one `+` on standard output when the socket listens. Before that the process leaves its parent (a fork whose parent
exits), so that the starter has no child to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

import msgpack

from penstock.connection.certificate import Certificate
from penstock.connection.sockets import SocketListener, unix_listening
from penstock.environment.config import HostConfig
from penstock.environment.host import Host
from penstock.environment.limits import lift_limits
from penstock.environment.peers.addresses import data_addresses
from penstock.errors import PenstockError
from penstock.link.kept_logs import KeptFile
from penstock.link.pulse import BEAT_SECONDS, Pulse
from penstock.link.rendezvous import Rendezvous, sweep
from penstock.settings import Settings

log = logging.getLogger("penstock.environment")

_WORD_BYTES = 4000
"""The starter is given at most so many bytes of the reason: fewer than a pipe takes at once."""
_SWEEPS = 10
_SWEEP_SECONDS = 0.1


def main() -> None:
    """Run to the end; the exit code is 0 unless it could not start."""
    raw = msgpack.unpackb(sys.stdin.buffer.read(), raw=False)
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    from pathlib import Path

    place = Rendezvous(Path(raw["folder"]))
    kept: Any = KeptFile(place.log.resolve(), descriptor=2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=kept)
    config = HostConfig(
        application=raw["application"],
        secret=raw["secret"],
        certificate=None if raw["certificate"] is None else Certificate(*raw["certificate"]),
        master=raw["master"],
        settings=Settings.from_conf(raw["settings"]),
        place=place,
        serves=raw["serves"],
    )
    lift_limits()
    lock = int(raw["lock"])
    os.set_inheritable(lock, False)
    dismissed = True
    try:
        dismissed = _run(_serve(config, null))
    except PenstockError as error:
        log.error("%s", error)  # noqa: TRY400 - the message says it all
        with contextlib.suppress(OSError):  # the log goes with the folder, and the starter has to know
            os.write(1, b"-" + str(error).encode()[:_WORD_BYTES])
        sys.exit(1)
    finally:
        if config.place.is_locked_by(lock):  # else another environment has taken this one's place
            config.place.remove()
        _sweep_after(config.settings.environment.directory, is_driver_dead=not dismissed)


def _sweep_after(directory: str, *, is_driver_dead: bool) -> None:
    """Remove the folders that killed processes of this host left: there may be no later start to do it.

    A killed driver holds the lock of its folder for some instants longer than its sockets.
    """
    for _ in range(_SWEEPS if is_driver_dead else 1):
        if sweep(directory):
            return
        time.sleep(_SWEEP_SECONDS if is_driver_dead else 0.0)


def _run(main_task: Coroutine[Any, Any, bool]) -> bool:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_task)
    return bool(uvloop.run(main_task))


async def _serve(config: HostConfig, null: int) -> bool:
    """Serve to the end; False where the JobMaster did not say that this is the end."""
    host = Host(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, host.stop, f"signal {number.name}")
    listener, listening = unix_listening(config.place.socket), None
    pulse = Pulse(config.place.pulse)
    try:
        await host.start(data_addresses(config.master, config.settings.environment))
        with contextlib.suppress(BrokenPipeError):  # who started it is gone; others may attach
            os.write(1, b"+")
        os.dup2(null, 1)
        listening = SocketListener(listener, str(config.place.socket), lambda task, _: _accept(host, task))
        host.supervisor.keep("watch", lambda: _watch(host, pulse))
        await host.stopping.wait()
    finally:
        if listening is not None:
            listening.close()
        listener.close()
        await host.close()
        pulse.close()
    return host.master.dismissed


def _accept(host: Host, connection: socket.socket) -> None:
    try:
        host.accept(connection)
    except PenstockError as error:
        log.warning("%s", error)
        connection.close()


async def _watch(host: Host, pulse: Pulse) -> None:
    """Beat, expire readers that wait too long, look after writers and processes, end an unused environment."""
    loop, lease = asyncio.get_running_loop(), host.config.settings.environment.lease_timeout
    idle_since = loop.time()
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        pulse.beat()
        host.partitions.expire_waiting()
        host.arbiter.stepped()
        host.deaths.look(host.task_registry.tasks)
        if host.is_owned or not host.is_idle:
            idle_since = loop.time()
        elif loop.time() - idle_since > lease:
            host.stop("nobody is attached and no JobMaster owns this environment")
