# SPDX-License-Identifier: Apache-2.0
"""Flags in ZooKeeper, as Storm keeps them: a coordinator of `throttle` (the extra `lab`).

A gate's flag is an ephemeral node `<path>/<application>/<job>/<environment>-<gate>`: it goes with the session of its
environment. All environments watch which jobs there are and which flags each has. Everything that asks ZooKeeper runs
in one thread, in order, and what it says comes back to the event loop. While ZooKeeper is not reached nobody is told
anything: sources go on, and the sockets' windows hold them back. It is tried again and again; then the flags that are
up by now are put there, as after a session that was lost.

Limits: no authentication and no TLS; the path of an application is removed at its last environment's end, if that
ends well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.environment.throttling import Coordinator, Told
from penstock.errors import SettingError, how_to_install

log = logging.getLogger("penstock.environment")

CONNECT_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
"""Until the next try, where there was nobody."""
ROOT: Final = "penstock"


def parse_address(address: str) -> tuple[str, str]:
    """Hosts and path of `host:port,host:port/path`; raises SettingError."""
    hosts, _, path = address.partition("/")
    if not hosts:
        raise SettingError(f"ZooKeeper's address {address!r} must look like host:2181 or host:2181,host:2181/path")
    return hosts, f"/{path.strip('/') or ROOT}"


class ZooKeeper:
    """The plug-in: `spark.penstock.network.throttleCoordinator=penstock_lab.zookeeper:ZooKeeper@host:2181/path`."""

    def coordinate(self, address: str, application: str, environment: str, told: Told) -> Coordinator:
        """The flags of one environment there."""
        return ZooKeeperFlags(address, application, environment, told)


class ZooKeeperFlags:
    """A `Coordinator`. Made on the event loop; raises SettingError for an address it can't read, or without kazoo."""

    def __init__(self, address: str, application: str, environment: str, told: Told) -> None:
        self._hosts, path = parse_address(address)
        try:
            from kazoo.client import KazooClient
        except ImportError:
            raise SettingError(
                "spark.penstock.network.throttleCoordinator names ZooKeeper, and kazoo is not installed: install it"
                f" where the environments run, with {how_to_install('lab')}"
            ) from None
        self._client = KazooClient(hosts=self._hosts, timeout=CONNECT_SECONDS)
        self._path = f"{path}/{application}"
        self._environment = environment
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "penstock-zookeeper")
        self._is_started = self._is_closed = False
        self._again: asyncio.TimerHandle | None = None
        self._watched: set[str] = set()
        self._up: set[str] = set()
        """Jobs with a flag, as this environment was told; of the event loop."""
        self._mine: set[str] = set()
        """The paths of this environment's own flags."""
        self._connect()

    def put(self, job: str, flag: str, *, is_raised: bool) -> None:
        """A gate raises its flag, or takes it down: soon."""
        self._later(self._put, job, f"{self._environment}-{flag}".replace("/", "_"), is_raised)

    def forget(self, job: str) -> None:
        """The job is over: whoever comes last removes what is left of it."""
        self._later(self._forget, job)

    async def close(self) -> None:
        """End the session, and with it this environment's flags; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if self._again is not None:
                self._again.cancel()
            await self._loop.run_in_executor(self._thread, self._stop)
            self._thread.shutdown(wait=False)

    def _connect(self) -> None:
        """Also where this environment has no flag: its sources must hear of those of others."""
        self._again = None
        self._later(self._start)

    def _later(self, work: Callable[..., None], *arguments: object) -> None:
        if not self._is_closed:
            self._thread.submit(self._guarded, work, *arguments)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """A ZooKeeper that fails holds up nobody: what it was to be told is said in the log."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - kazoo's errors have no common base, and none ends an environment
            log.warning("ZooKeeper at %s: %s failed: %r", self._hosts, work.__name__, error)

    def _start(self) -> None:
        """Connect, put up what is up by now, and watch; once more later where that fails."""
        try:
            self._client.start(CONNECT_SECONDS)
        except Exception:
            self._loop.call_soon_threadsafe(self._try_again)
            raise
        self._is_started = True
        self._client.add_listener(self._on_state)
        self._client.ensure_path(self._path)
        self._restore()
        self._client.ChildrenWatch(self._path, self._on_jobs)

    def _try_again(self) -> None:
        if not self._is_closed:
            self._again = self._loop.call_later(AGAIN_SECONDS, self._connect)

    def _on_state(self, state: str) -> None:
        """In a thread of kazoo's: where a session was lost its flags are, too."""
        if state == "CONNECTED":
            self._loop.call_soon_threadsafe(self._later, self._restore)

    def _restore(self) -> None:
        for path in self._mine:
            self._put_path(path, is_raised=True)

    def _put(self, job: str, name: str, is_raised: bool) -> None:
        path = f"{self._path}/{job}/{name}"
        (self._mine.add if is_raised else self._mine.discard)(path)
        if self._is_started:
            self._put_path(path, is_raised=is_raised)

    def _put_path(self, path: str, *, is_raised: bool) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        with contextlib.suppress(NodeExistsError, NoNodeError):  # said before
            if is_raised:
                self._client.create(path, ephemeral=True, makepath=True)
            else:
                self._client.delete(path)

    def _forget(self, job: str) -> None:
        from kazoo.exceptions import NoNodeError, NotEmptyError

        if not self._is_started:
            return
        # Another environment was first, or has a flag still and comes after this one.
        with contextlib.suppress(NoNodeError, NotEmptyError):
            self._client.delete(f"{self._path}/{job}")

    def _stop(self) -> None:
        from kazoo.exceptions import KazooException

        try:
            if self._is_started:
                self._client.delete(self._path)
        except KazooException:
            pass  # others use it still
        finally:
            self._client.stop()
            self._client.close()

    def _on_jobs(self, jobs: list[str]) -> None:
        """In a thread of kazoo's: there are these jobs."""
        for job in jobs:
            if job not in self._watched:
                self._watched.add(job)
                self._client.ChildrenWatch(f"{self._path}/{job}", self._on_flags(job))
        self._watched.intersection_update(jobs)

    def _on_flags(self, job: str) -> Callable[[list[str]], Any]:
        def changed(flags: list[str]) -> None:
            self._loop.call_soon_threadsafe(self._say, job, bool(flags))

        return changed

    def _say(self, job: str, is_raised: bool) -> None:
        if (job in self._up) is not is_raised and not self._is_closed:
            (self._up.add if is_raised else self._up.discard)(job)
            self._told(job, is_raised=is_raised)
