# SPDX-License-Identifier: Apache-2.0
"""Pushes one partition's blocks to the workers that have its files, commits there, and tells the manager.

Rules: all of it runs in the loop thread. A worker that takes no more of a file, and one that can't be reached and has
nothing of this writer yet, are replaced: the manager names another. If a worker goes that has blocks of this writer,
the partition is lost, and its task fails: it is produced again. One that owes a word for longer than `retryTimeout`
is gone, whatever it tells its manager: a disk may hang. The first error stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from penstock.connection.frame_connection import FrameConnection
from penstock.errors import (
    AuthenticationError,
    ControlError,
    EnvironmentLostError,
    PartitionError,
    PartitionLostError,
    PenstockError,
    QuotaError,
    StaleError,
)
from penstock.plugin.partition_errors import about
from penstock.remote import messages as ask
from penstock.remote.peers import Way, answered, asked
from penstock.remote.wire import ACK, PAIR, SUM, BulkFrame, PeerLogic
from penstock.services.remote.lines import ManagerLine
from penstock.services.remote.push_queue import PushedBlock, PushQueue
from penstock.shuffle import PartitionId
from penstock.shuffle.sums import Sums

_PAUSE_SECONDS = 0.1
_KNOWN_SECONDS = 20.0
_MOVE_SECONDS = 3.0
"""So long a worker that has nothing of this writer is tried, before another one takes its place."""


class WorkerPush:
    """The connection to one worker, made again where it breaks."""

    def __init__(self, name: str, way: Way, window: int, entered: ask.EnterWriter) -> None:
        self.name = name
        self.queue = PushQueue(window)
        self.sums: dict[int, Sums] = defaultdict(Sums)
        """The sums of what is stored there, by file."""
        self.ends: dict[int, int] = {}
        self.failed: Callable[[PenstockError], None] = lambda _: None
        self.stored: Callable[[WorkerPush, PushedBlock], None] = lambda _, __: None
        self.way = way
        self._entered = entered
        self._begins: dict[int, int] = {}
        self._heard = 0.0
        self._connection: FrameConnection[Any] | None = None
        self.logic: PeerLogic | None = None

    @property
    def has_blocks(self) -> bool:
        """True if something of this writer is, or may be, there."""
        return bool(self.ends)

    def silent(self, now: float) -> float:
        """The seconds for which the worker has owed a word; 0 for one that owes none, or is not connected."""
        return now - self._heard if self.logic is not None and self.queue.is_waiting else 0.0

    async def connect(self, seconds: float) -> None:
        """Connect, and say who pushes; raises EnvironmentLostError, also after so long, StaleError."""
        bulk = {BulkFrame.PROMISE: self._promised, BulkFrame.ACK: self._acknowledged}
        logic = PeerLogic({}, {int(kind): each for kind, each in bulk.items()}, lambda _: self._lost(logic))
        self._connection = await self.way.connect(logic)
        await answered(logic, self._entering(), seconds)
        self.logic = logic
        self.announce()

    def take_over(self, file: int, number: int) -> None:
        """A file goes on here, from this block on."""
        self._begins[file] = number
        if self.logic is not None:
            self.logic.ask(self._entering(), _nothing)

    def announce(self) -> None:
        """Announce what the window has room for."""
        if not self.queue.is_waiting:
            self._heard = asyncio.get_running_loop().time()
        if self.logic is not None and (blocks := self.queue.announce()):
            lengths = struct.pack(f"<{len(blocks)}I", *(block.length for block in blocks))
            self.logic.send_bulk(BulkFrame.WANT, lengths)

    async def commit(self, partition: PartitionId, writer: int, seconds: float) -> None:
        """Say that all is there; raises what the worker answers, EnvironmentLostError, TimeoutError."""
        assert self.logic is not None  # noqa: S101 - it has acknowledged all, or was connected again
        sums = b"".join(SUM.pack(file, s.rows, s.nbytes, s.checksum) for file, s in self.sums.items())
        ends = b"".join(PAIR.pack(file, end) for file, end in self.ends.items())
        async with asyncio.timeout(seconds):
            await asked(self.logic, ask.CommitPushed(partition, writer, sums, ends))

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _entering(self) -> ask.EnterWriter:
        begins = b"".join(PAIR.pack(file, number) for file, number in self._begins.items())
        return dataclasses.replace(self._entered, begins=begins)

    def _promised(self, body: memoryview) -> None:
        self._heard = asyncio.get_running_loop().time()
        for block in self.queue.promised(struct.unpack("<I", body)[0]):
            assert self.logic is not None  # noqa: S101 - it is what this came over
            self.logic.send_rows(BulkFrame.PUSH, b"", (block.head, *block.parts), _nothing)

    def _acknowledged(self, body: memoryview) -> None:
        self._heard = asyncio.get_running_loop().time()
        try:
            for _, file, number, verdict in ACK.iter_unpack(body):
                block = self.queue.acknowledged(file, number, verdict)
                if block is not None:
                    self.sums[file].add(*block.sums)
                    self.ends[file] = max(self.ends.get(file, 0), number + 1)
                    self.stored(self, block)
        except QuotaError as error:
            self.failed(QuotaError(f"worker {self.name} at {self.way.address.partition('://')[2]}: {error}"))
        except PenstockError as error:
            self.failed(error)
        self.announce()

    def _lost(self, logic: PeerLogic) -> None:
        if self.logic is logic:
            self.logic = self._connection = None
            self.queue.broken()


class Pusher:
    """Pushes the blocks of one partition to workers."""

    def __init__(self, line: ManagerLine, begun: ask.StartPartition, wake: Callable[[], None]) -> None:
        self._line = line
        self._patience = line.access.settings.retry_timeout
        self._begun = begun
        self._wake = wake
        self._workers: dict[str, WorkerPush] = {}
        self._located = ask.Located({}, ())
        self._keepers: list[asyncio.Task[None]] = []
        self._staying: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._is_over = False
        self.error: PenstockError | None = None
        self.stored = 0
        """Bytes that workers have stored."""
        self.is_finished = False

    async def begin(self) -> None:
        """Tell the manager, and learn where the files are."""
        self._located = await self._line.ask(self._begun)
        self._staying = asyncio.ensure_future(self._stay_known())

    def add(self, blocks: list[PushedBlock]) -> None:
        """Push these blocks after those before."""
        if self.error is None and not self._is_over:
            try:
                self._give(blocks)
            except PenstockError as error:
                self.fail(error)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the task waiting
                self.fail(ControlError(f"{self._begun.partition} could not be pushed: {error!r}"))

    async def finish(self) -> None:
        """Push the rest, commit, and tell the manager. The error that stays is in `error`."""
        try:
            await self._push_all()
            users = [worker for worker in self._workers.values() if worker.has_blocks]
            await asyncio.gather(*(self._commit(worker) for worker in users))
            names = tuple(worker.name for worker in users)
            begun = self._begun
            await self._line.ask(ask.FinishPartition(begun.partition, begun.writer, names))
            self.is_finished = True
        except PenstockError as error:
            self.fail(error)
        finally:
            self.close()
            self._wake()

    async def give_up(self, cause: str) -> None:
        """Tell the manager that there will be nothing; it need not hear it."""
        self.close()
        begun = self._begun
        await self._line.ask(ask.FailPartition(begun.partition, begun.writer, cause), patience=2.0)

    def fail(self, error: PenstockError) -> None:
        """Give up for this reason, the first one."""
        if self.error is None:
            self.error = error
        self._moved.set()
        self._wake()

    def close(self) -> None:
        """Hang up; idempotent."""
        self._is_over = True
        if self._staying is not None:
            self._staying.cancel()
        for worker in self._workers.values():
            worker.close()

    def _give(self, blocks: Iterable[PushedBlock]) -> None:
        by_worker: dict[str, list[PushedBlock]] = defaultdict(list)
        for block in blocks:
            by_worker[self._located.places[block.file][-1]].append(block)
        for name, theirs in by_worker.items():
            worker = self._worker(name)
            worker.queue.add(theirs)
            worker.announce()

    def _worker(self, name: str) -> WorkerPush:
        worker = self._workers.get(name)
        if worker is None:
            if name not in self._located.addresses:
                raise self._lost(name, "the manager does not know it any more")
            begun, window = self._begun, self._line.access.settings.push_window
            entered = ask.EnterWriter(begun.partition, begun.writer, word=self._located.word)
            way = self._way(self._located.addresses[name])
            worker = self._workers[name] = WorkerPush(name, way, window, entered)
            worker.failed = self.fail
            worker.stored = self._stored
            self._keepers.append(asyncio.ensure_future(self._keep(worker)))
        return worker

    def _way(self, address: str) -> Way:
        return Way(address, self._line.access.own, self._line.access.protection)

    def _stored(self, worker: WorkerPush, block: PushedBlock) -> None:
        self.stored += block.length
        self._moved.set()
        self._wake()

    async def _keep(self, worker: WorkerPush) -> None:
        """Keep the worker connected as long as there is anything to push, and move what it does not take."""
        try:
            while self.error is None and not self._is_over:
                if full := worker.queue.take_full():
                    await self._move(worker, full, "its disk takes no more")
                if worker.logic is None and not worker.queue.is_empty:
                    await self._connect(worker)
                if worker.silent(asyncio.get_running_loop().time()) > self._patience:
                    await self._replace(worker, f"it has taken nothing for {self._patience:g} s")
                await self._wait()
        except PenstockError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the task waiting
            self.fail(ControlError(f"{self._begun.partition} could not be pushed: {error!r}"))

    async def _replace(self, worker: WorkerPush, cause: str) -> None:
        """Have another worker take the place of one that says nothing; PartitionLostError where that is too late."""
        worker.close()
        if worker.has_blocks:
            await self._line.ask(ask.Suspect(worker.name, cause))
            raise self._lost(worker.name, f"{cause} (spark.penstock.remote.retryTimeout)")
        await self._move(worker, worker.queue.take_all(), cause)

    async def _stay_known(self) -> None:
        """Tell the manager that the writer is there, as it gives up silent ones; hear that it was given up."""
        while True:
            await asyncio.sleep(_KNOWN_SECONDS)
            try:
                await self._line.ask(self._begun)
            except (StaleError, PartitionError) as error:
                self.fail(error)
                return
            except PenstockError:
                continue  # it is asked again when it is needed, and then for long enough

    async def _connect(self, worker: WorkerPush) -> None:
        """Connect, or have another worker take its place; raises PartitionLostError where that is too late."""
        loop = asyncio.get_running_loop()
        patience, began = self._patience, loop.time()
        while not self._is_over:
            try:
                await worker.connect(patience)
                return
            except AuthenticationError:
                raise
            except EnvironmentLostError as error:
                if self._is_over or self.error is not None:
                    return  # this end has hung up: the worker is not to blame
                cause = f"it can't be reached: {error}"
                waited = loop.time() - began
                if not worker.has_blocks and waited > min(_MOVE_SECONDS, patience / 2):
                    await self._move(worker, worker.queue.take_all(), cause)
                    return
                await self._line.ask(ask.Suspect(worker.name, cause))
                found = await self._line.ask(self._begun)  # raises where the manager knows that it is lost
                if worker.name in found.addresses:
                    worker.way = self._way(found.addresses[worker.name])
                if waited > patience:
                    raise self._lost(worker.name, cause) from error
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _move(self, worker: WorkerPush, blocks: dict[int, list[PushedBlock]], cause: str) -> None:
        for files in ask.pieces(blocks):
            asked_for = ask.MoveFiles(self._begun.partition, files, worker.name, cause)
            self._located = await self._line.ask(asked_for)
        for file, theirs in blocks.items():
            self._worker(self._located.places[file][-1]).take_over(file, theirs[0].number)
        self._give(block for theirs in blocks.values() for block in theirs)

    async def _push_all(self) -> None:
        while True:
            if self.error is not None:
                raise self.error
            if all(worker.queue.is_empty for worker in self._workers.values()):
                return
            await self._wait()

    async def _wait(self) -> None:
        """Until something has moved, or it is time to look again."""
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await self._moved.wait()

    async def _commit(self, worker: WorkerPush) -> None:
        for _ in range(3):
            try:
                if worker.logic is None:
                    await self._connect(worker)
                await worker.commit(self._begun.partition, self._begun.writer, self._patience)
                return
            except EnvironmentLostError:
                continue
            except TimeoutError:
                raise self._lost(worker.name, f"it has not committed for {self._patience:g} s") from None
        raise self._lost(worker.name, "it went while the partition was committed")

    def _lost(self, name: str, cause: str) -> PenstockError:
        address = self._located.addresses.get(name, "an unknown place").removeprefix("tcp://")
        partition = self._begun.partition
        return about(partition, PartitionLostError(f"{partition} is lost: worker {name} at {address}: {cause}"))


def _nothing(_: object = None) -> None:
    """Bytes that are sent are let go of when they are stored, and a worker that refuses a writer says so again."""
