# SPDX-License-Identifier: Apache-2.0
"""The life of the host service: its folder locked, its doors open, and a clean end.

Rules: one process has a folder, each of those that it is given: the second one is told who has it. SIGTERM and SIGINT
end it well. The next one serves all that was committed, by whatever the last one was ended.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time

from penstock.connection.budgets import UserBudgets
from penstock.connection.descriptors import own_descriptors
from penstock.connection.protection import serving_protection
from penstock.connection.transport import join_host
from penstock.external.adoption import open_service_folders
from penstock.external.folders import ServiceFolders
from penstock.external.keeper import Keeper, KeeperPolicy
from penstock.external.metrics import service_samples
from penstock.external.options import HostServiceOptions
from penstock.external.server import ServiceServer
from penstock.observe.endpoint import MetricsEndpoint
from penstock.settings import ObserveSettings

log = logging.getLogger("penstock.external")

_PARTITION_BYTES = 1 << 10
"""The cost of a partition, or a result, that the service knows: its row, and the words about it."""
_LOOKS = 8
"""Looks for what has expired within a lease."""


async def serve(options: HostServiceOptions) -> None:
    """Serve until a signal comes. SettingError where it can't start."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    descriptors = own_descriptors()
    opened = open_service_folders(options.folders)
    try:
        host = socket.gethostname()
        names = options.memory // _PARTITION_BYTES
        policy = KeeperPolicy(options.quota, options.lease, options.kept_lease, host, options.kept, names)
        found = opened.sorted
        folders = ServiceFolders(found.ours, options.reserve, hides_another=found.hides_another)
        keeper = Keeper(opened.index, folders, policy)
        server = ServiceServer(keeper, options.memory, UserBudgets(options.memory, descriptors))
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
    finally:
        opened.let_go()
    log.info("ended; what was committed stays")


async def _watch(keeper: Keeper, lease: float, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        try:
            await asyncio.wait_for(stopping.wait(), lease / _LOOKS)
        except TimeoutError:
            await keeper.expire(time.monotonic())
