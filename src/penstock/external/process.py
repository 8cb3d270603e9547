# SPDX-License-Identifier: Apache-2.0
"""The life of the host service: its folder locked, its doors open, and a clean end.

Rules: one process has a folder, each of those that it is given: the second one is told who has it. SIGTERM and SIGINT
end it well. The next one serves all that was committed, by whatever the last one was ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.connection.protection import serving_protection
from penstock.connection.transport import join_host
from penstock.errors import SettingError
from penstock.external.catalogue import Catalogue
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.metrics import service_samples
from penstock.external.options import HostServiceOptions
from penstock.external.server import ServiceServer
from penstock.observe.endpoint import MetricsEndpoint
from penstock.settings import ObserveSettings

log = logging.getLogger("penstock.external")

_LOCK = "lock"
_LOOKS = 8
"""Looks for what has expired within a lease."""


async def serve(options: HostServiceOptions) -> None:
    """Serve until a signal comes. SettingError where it can't start."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    with ExitStack() as locks:
        for folder in options.folders:
            _make(folder)
            locks.enter_context(_locked(folder))
        catalogue = Catalogue(options.folders[0] / "catalogue.db")
        host = socket.gethostname()
        policy = KeeperPolicy(options.quota, options.lease, options.kept_lease, host, options.kept)
        keeper = Keeper(catalogue, ServiceFolders(options.folders, options.reserve), policy)
        server = ServiceServer(keeper, options.memory)
        protection = serving_protection(options.tls, options.certificate, options.key)
        shown = ObserveSettings(
            metrics=bool(options.metrics_port), metrics_host=options.metrics_host, metrics_port=options.metrics_port
        )
        metrics = MetricsEndpoint(shown, lambda: service_samples(keeper, server))
        try:
            await metrics.open()
            address = await server.open(join_host(options.host, options.port), options.socket_path, protection)
            print(f"serving {options.folders[0]} at {address} and {options.socket_path}", flush=True)  # noqa: T201
            await _watch(keeper, min(options.lease, options.kept_lease), stopping)
        finally:
            await metrics.close()
            server.close()
            await keeper.close()
    log.info("ended; what was committed stays")


async def _watch(keeper: Keeper, lease: float, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        try:
            await asyncio.wait_for(stopping.wait(), lease / _LOOKS)
        except TimeoutError:
            keeper.expire(time.monotonic())


def _make(folder: Path) -> None:
    """Make a folder that others may pass through, to the socket, and not look into."""
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"the host service can't use {folder}: {error}. See --dir") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 20, 0).decode(errors="replace")
            raise SettingError(
                f"another host service uses {folder} (process {other}): stop it, or give this one another --dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
