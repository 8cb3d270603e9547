# SPDX-License-Identifier: Apache-2.0
"""A worker: takes blocks that are pushed, keeps them merged by consumer, and gives them to readers.

Rules: the cores decide (`merged`, `push_credit`), files are written and read in threads (`store`). A block is checked
when it comes; one that was damaged on its way is asked for again. With each beat the worker hears what the manager
does not know any more, and drops it. A worker has its name for as long as its first folder: it comes again under it,
with what was committed, after it was killed, and after the manager has given it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import EnvironmentLostError, PenstockError, SettingError, StaleError
from penstock.link.figures import UseFigures, UseKind
from penstock.machine.disk_work import DISKS
from penstock.observe.samples import Sample, use_samples
from penstock.remote import messages as ask
from penstock.remote.block_memory import KEPT_SECONDS
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.log_history import read_word
from penstock.remote.peers import Entrance, ServiceAccess, Way, application_of, asked
from penstock.remote.pushed import PushSession
from penstock.remote.store import MergedFiles, StoreOptions
from penstock.remote.streams import ReadSession
from penstock.remote.wire import BulkFrame, Guest, PeerLogic, Serve
from penstock.shuffle.metrics import Metric, MetricKind
from penstock.shuffle.requests import Request

_LOG = logging.getLogger("penstock.remote.worker")
_BEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker: its address, its manager, its memory, how others reach it, quotas.

    Sizes in bytes; `quota` is an application's, `user_quota` a user's, with what is kept by name; 0 is no limit.
    """

    listen: str
    manager: str
    memory: int = 512 << 20
    advertised: str = ""
    quota: int = 0
    user_quota: int = 0


class RemoteWorker:
    """One worker process."""

    def __init__(self, options: WorkerOptions, store: StoreOptions, access: ServiceAccess) -> None:
        self._options = options
        self._access = access
        self.address = ""
        self.holdings = WorkerHoldings(MergedFiles(store), options.memory, options.quota, options.user_quota)
        self.name = self.holdings.restore()
        self.holdings.begin()
        held = sum(len(dataset.writers) for dataset in self.holdings.datasets.values())
        _LOG.info("worker %s has %d committed writers of %d datasets", self.name, held, len(self.holdings.datasets))
        self.is_leaving = False
        self._numbers = itertools.count()
        self._pushes: dict[int, PushSession] = {}
        self._entrance = Entrance(access, self)

    async def open(self) -> str:
        """Listen; the address with its port."""
        address = await self._entrance.open(self._options.listen)
        self.address = self._options.advertised or address
        return address

    def leave(self) -> None:
        """Take no new files, and end when nothing here is needed any more."""
        self.is_leaving = True

    async def run(self) -> None:
        """Serve until it may leave, or is cancelled."""
        is_needed = True
        looking = asyncio.gather(self._look_at_memory(), self._look())
        try:
            while not await self._serve_manager():
                _LOG.error("the manager has given this worker up: it comes again, and hears what is needed of it")
            is_needed = False
        finally:
            looking.cancel()
            self._entrance.close()
            await self.holdings.store.finish()
            self.holdings.store.close(is_needed=is_needed)

    def entered(self, identity: str, guest: Guest | None) -> PeerLogic:
        """A task has come in."""
        application = application_of(identity)
        number = next(self._numbers)
        pushes = PushSession(self.holdings, application, number, self._access.secret)
        reads = ReadSession(self.holdings, application, self._access)
        serves: dict[type[Request[Any]], Serve] = {
            ask.EnterWriter: pushes.open,
            ask.CommitPushed: pushes.commit,
            ask.OpenReader: reads.open,
        }
        bulk: dict[int, Callable[[memoryview], None]] = {
            BulkFrame.WANT: pushes.want,
            BulkFrame.PUSH: pushes.push,
            BulkFrame.CREDIT: reads.credit,
            BulkFrame.LEAVE: reads.leave,
        }

        def lost(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, EnvironmentLostError):
                _LOG.warning("a connection of %s was ended: %s", identity, error)
            self._pushes.pop(number, None)
            pushes.close()
            reads.close()

        logic = PeerLogic(serves, bulk, lost, pushes.allocate, guest)
        pushes.logic = reads.logic = logic
        self.holdings.enter(number, logic, application)
        self._pushes[number] = pushes
        return logic

    async def _look_at_memory(self) -> None:
        """Have unused buffers of blocks go back to the system, again and again."""
        while True:
            await asyncio.sleep(KEPT_SECONDS)
            self.holdings.memory.look()

    async def _look(self) -> None:
        """See how the disks are, and end the connections of those who keep memory, and send nothing."""
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            self.holdings.store.look()
            self._entrance.look(time.monotonic())
            self.holdings.look(time.monotonic())
            for session in list(self._pushes.values()):
                session.look(time.monotonic())

    async def _serve_manager(self) -> bool:
        """Beat until this worker may leave (True), or was given up (False)."""
        way = Way(self._options.manager, self._access.worker(self.name), self._access.protection)
        while True:
            gone = asyncio.Event()
            logic = PeerLogic({}, {}, lambda _, gone=gone: gone.set())  # type: ignore[misc]
            try:
                connection = await way.connect(logic)
            except PenstockError as error:
                _LOG.warning("the manager can't be reached: %s", error)
                await asyncio.sleep(_BEAT_SECONDS)
                continue
            try:
                await self._enroll(logic)
                while not await self._beat(logic):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_BEAT_SECONDS):
                            await gone.wait()
                return True
            except StaleError:
                return False
            except SettingError as error:
                folder = self.holdings.store.folder
                raise SettingError(f"{error}. Its folder is {folder}, and it ends") from error
            except PenstockError as error:
                _LOG.warning("the manager has gone: %s", error)
                await asyncio.sleep(_BEAT_SECONDS / 4)
            finally:
                connection.close()

    async def _enroll(self, logic: PeerLogic) -> None:
        lineage = self.holdings.lineage
        await asked(logic, ask.Enroll(self.name, self.address, lineage, self.holdings.store.words.all))
        if lineage[1:]:
            await self.holdings.store.taken(lineage[-1])
            self.holdings.lineage = lineage[-1:]

    async def _beat(self, logic: PeerLogic) -> bool:
        holdings = self.holdings
        held = tuple((*key, tuple(dataset.writers)) for key, dataset in holdings.datasets.items())
        load = holdings.credit.used / holdings.credit.marks.cap
        orders: ask.Orders = await asked(logic, ask.Beat(holdings.store.free, load, self.is_leaving, held))
        if orders.word:
            holdings.store.words.hear_manager(*read_word(self._access.secret, orders.word))
        for application, name, writers in orders.drops:
            holdings.drop(application, name, writers)
        for application, name in orders.forget:
            holdings.forget(application, name)
        return orders.may_leave


_COUNTERS = {
    "pushed_bytes": "Bytes of blocks that tasks have pushed.",
    "read_bytes": "Bytes of blocks that were read for tasks.",
    "dropped_bytes": "Bytes that were pushed and not stored: repeats, stale or damaged ones, those of full disks.",
    "written_bytes": "Bytes of blocks that were written to disks.",
    "memory_over_high_mark": "Times that the memory for pushes went above its high mark.",
}
_GAUGES = {
    "memory_bytes": "Memory that is promised, held or kept, for pushes and for readers.",
    "memory_is_over": "1 from the high mark on until below the low one: nothing more is promised.",
    "free_bytes": "Bytes that are free on its disks beyond the reserve.",
}


def worker_samples(holdings: WorkerHoldings, name: str) -> Iterator[Sample]:
    """The figures of a worker that goes by this name."""
    figures, credit = holdings.figures, holdings.credit
    values = {
        "pushed_bytes": figures.pushed,
        "read_bytes": figures.read,
        "dropped_bytes": figures.dropped,
        "written_bytes": holdings.store.written,
        "memory_over_high_mark": figures.over,
        "memory_bytes": credit.used + holdings.reading.used + holdings.memory.bytes,
        "memory_is_over": int(credit.is_over),
        "free_bytes": holdings.store.free,
    }
    for name, text in _COUNTERS.items():
        metric = Metric(f"penstock_remote_worker_{name}_total", MetricKind.COUNTER, text, ())
        yield Sample(metric, (), values[name])
    for name, text in _GAUGES.items():
        metric = Metric(f"penstock_remote_worker_{name}", MetricKind.GAUGE, text, ())
        yield Sample(metric, (), values[name])
    disks = (UseFigures(UseKind.DISK, disk, figures) for disk, figures in DISKS.figures().items())
    yield from use_samples(f"remote worker {name}", (*disks, *holdings.users.figures()))
