# SPDX-License-Identifier: Apache-2.0
"""`penstock service remote manager` and `penstock service remote worker`: the processes of the remote service."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock.observe.endpoint import MetricsEndpoint
from penstock.remote.known_workers import ManagerLimits
from penstock.remote.manager import ManagerOptions, RemoteManager
from penstock.remote.peers import ServiceAccess, address_of, own_protection
from penstock.remote.store import StoreOptions
from penstock.remote.worker import RemoteWorker, WorkerOptions, worker_samples
from penstock.remote.worker_folders import open_worker_folders
from penstock.settings import ObserveSettings
from penstock.settings.values import parse_lease, parse_seconds, parse_size

HELP = "storage apart from compute: a manager, and workers that keep rows"
_SECRET = "PENSTOCK_REMOTE_SECRET"  # noqa: S105 - the name of a variable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The grammar of both processes."""
    roles = parser.add_subparsers(title="processes", required=True, metavar="PROCESS")
    manager = roles.add_parser("manager", help="places partitions, knows who lives; one for all workers")
    worker = roles.add_parser("worker", help="keeps rows on the disks of its host")
    worker.add_argument("--metrics-port", type=int, metavar="N", help="serve Prometheus at this port of loopback")
    for each in (manager, worker):
        each.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (127.0.0.1)")
        each.add_argument("--port", type=int, default=0, metavar="N", help="where to listen (0: any free port)")
        each.add_argument("--keys", required=True, metavar="FILE", help="users' keys: lines of `penstock key USER`")
        each.add_argument("--secret-file", metavar="FILE", help=f"of manager and workers alone (else ${_SECRET})")
        each.add_argument("--certificate", metavar="FILE", help="PEM, with its key (off loopback one is made)")
        each.add_argument("--authorities", default="", metavar="FILE", help="PEM, by which the others are checked")
        each.add_argument("--fsync", action="store_true", help="wait for the disk before anything is called done")
    manager.add_argument("--dir", required=True, metavar="FOLDER", help="its state, which it reads when it restarts")
    manager.add_argument("--silence", default="30s", metavar="TIME", help="a worker that is silent so long is lost")
    out = "an application that could not reach a worker gets files elsewhere for so long (180s)"
    manager.add_argument("--leave-out", default="180s", metavar="TIME", help=out)
    manager.add_argument(
        "--lease",
        default="600s",
        metavar="TIME",
        help="of an application whose driver is silent, and of a silent writer",
    )
    back = "so long a worker that was killed may take to be started again before it is lost (10s)"
    manager.add_argument("--rejoin", default="10s", metavar="TIME", help=back)
    kept = "a result that is kept by name, and that nobody looks for so long, goes (7d)"
    manager.add_argument("--kept-lease", default="7d", metavar="TIME", help=kept)
    manager.set_defaults(run=_run_manager, parser=manager)
    worker.add_argument("--manager", required=True, metavar="HOST:PORT", help="its manager")
    worker.add_argument(
        "--dir", required=True, action="append", metavar="FOLDER", help="its files; once for each disk"
    )
    worker.add_argument("--memory", default="512m", metavar="SIZE", help="for rows on their way, in and out (512m)")
    worker.add_argument("--reserve", default="1g", metavar="SIZE", help="stays free on each disk (1g)")
    quota = "what one application may keep at this worker (0: no limit)"
    worker.add_argument("--quota", default="0", metavar="SIZE", help=quota)
    users = "what all applications of a user may keep here, with results that are kept by name (0: no limit)"
    worker.add_argument("--user-quota", default="0", metavar="SIZE", help=users)
    worker.add_argument("--advertise", default="", metavar="HOST:PORT", help="the address by which others reach it")
    adopt = "make folders without an id this worker's, as those of a version that wrote none, and end"
    worker.add_argument("--adopt", action="store_true", help=adopt)
    worker.set_defaults(run=_run_worker, parser=worker)


def _run_manager(options: argparse.Namespace) -> int:
    silence, lease, kept_lease = map(_lease, (options.silence, options.lease, options.kept_lease))
    limits = ManagerLimits(silence, _seconds(options.leave_out), lease, kept_lease, _seconds(options.rejoin))
    made = ManagerOptions(address_of(f"{options.host}:{options.port}"), Path(options.dir), limits, options.fsync)
    access = _access(options)

    async def serve() -> None:
        manager = RemoteManager(made, access)
        _say("manager", await manager.open())
        await _until_told(manager.run(), lambda task: task.cancel())

    return _run(serve())


def _run_worker(options: argparse.Namespace) -> int:
    if options.adopt:
        return _adopt([Path(each) for each in options.dir])
    host = options.advertise.rpartition(":")[0] if options.advertise else options.host
    if _is_all_addresses(host):
        told = f"--advertise {options.advertise}" if options.advertise else f"--host {options.host}"
        raise SettingError(f"{told} is no address to come to: name one by --advertise HOST:PORT")
    advertised = address_of(options.advertise) if options.advertise else ""
    memory, reserve = _size(options.memory), _size(options.reserve)
    if memory < 16 << 20:
        raise SettingError(f"--memory {options.memory}: a worker needs at least 16m")
    listen, manager = address_of(f"{options.host}:{options.port}"), address_of(options.manager)
    made = WorkerOptions(listen, manager, memory, advertised, _size(options.quota), _size(options.user_quota))
    access = _access(options)
    store = StoreOptions(tuple(Path(each) for each in options.dir), reserve, options.fsync)

    async def serve() -> None:
        worker = RemoteWorker(made, store, access)
        _say("worker", await worker.open())

        def leave(task: asyncio.Task[None]) -> None:
            if worker.is_leaving:
                task.cancel()
            worker.leave()

        told = ObserveSettings(metrics=options.metrics_port is not None, metrics_port=options.metrics_port or 0)
        metrics = MetricsEndpoint(told, lambda: worker_samples(worker.holdings, worker.address))
        await metrics.open()
        try:
            await _until_told(worker.run(), leave)
        finally:
            await metrics.close()

    return _run(serve())


def _adopt(folders: Sequence[Path]) -> int:
    opened = open_worker_folders(folders, adopts=True)
    sys.stdout.write(f"{', '.join(map(str, opened.sorted.ours))}: worker {opened.index.id} has these folders\n")
    opened.index.close()
    opened.let_go()
    return 0


async def _until_told(running: Coroutine[Any, Any, None], told: Any) -> None:
    """Run until SIGTERM or SIGINT says to end."""
    task = asyncio.ensure_future(running)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told, task)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _run(serve: Coroutine[Any, Any, None]) -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    asyncio.run(serve)
    return 0


def _say(role: str, address: str) -> None:
    sys.stdout.write(f"penstock remote {role} listens at {address.partition('://')[2]}\n")
    sys.stdout.flush()


def _access(options: argparse.Namespace) -> ServiceAccess:
    certificate = None
    if options.certificate or options.authorities:
        from penstock.connection.certificates import read_certificate

        certificate = read_certificate(options.certificate or "", "", options.authorities)
    return ServiceAccess.of(_secret(options), Path(options.keys), own_protection(options.host, certificate))


def _secret(options: argparse.Namespace) -> str:
    if not options.secret_file:
        found = os.environ.get(_SECRET, "")
        if not found:
            raise SettingError(f"there is no secret: name --secret-file, or set {_SECRET}")
        return found
    path = Path(options.secret_file)
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SettingError(f"{path} can be read by others than its owner: chmod 600 it")
        return path.read_text().strip()
    except OSError as error:
        raise SettingError(f"the secret can't be read: {error}") from error


def _is_all_addresses(host: str) -> bool:
    """Tell whether these are all addresses of a host, in any spelling, such as 0.0.0.0, 0 or ::0."""
    try:
        found = socket.getaddrinfo(host.strip("[]") or "0", None, flags=socket.AI_NUMERICHOST)
    except OSError:  # a name
        return False
    return any(ipaddress.ip_address(where[0]).is_unspecified for *_, where in found)


def _lease(text: str) -> float:
    try:
        return parse_lease(text)
    except ValueError as error:
        raise SettingError(f"{text!r} is no lease: it takes {error}") from error


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise SettingError(f"{text!r} is not valid: it takes {error}") from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise SettingError(f"{text!r} is not valid: it takes {error}") from None
