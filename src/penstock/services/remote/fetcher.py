# SPDX-License-Identifier: Apache-2.0
"""Fetches the blocks of a gate's channels: asks the manager where they are, and the workers for them, within credit.

Rules:

- All of it runs in the loop thread; what comes goes into a queue that the task's thread empties, and each block's
  bytes are credit again when the task has taken it. So a gate holds at most its window, whatever the number of
  workers.
- Channels that read the same range of the same dataset are one group: a worker's merged files are read once for all
  of its producers.
- A connection that breaks, and a stream with a damaged block, are begun again; channels drop what they have already.
  A second damage at the same worker is one of its disk.
- A worker that may send, and from which nothing comes for `retryTimeout`, is gone. So is one that can't be reached
  for so long after the last new bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from penstock.errors import (
    AuthenticationError,
    ControlError,
    EnvironmentLostError,
    IncompleteDataError,
    PartitionError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    StorageError,
)
from penstock.link.control import carried_error, unpack
from penstock.plugin.partition_errors import about
from penstock.remote import messages as ask
from penstock.remote.blocks import HEAD, LEAST_CREDIT, BlockHead, read_blocks
from penstock.remote.partition_states import RemoteState
from penstock.remote.peers import Way, answered
from penstock.remote.wire import PAIR, READ_SUM, BulkFrame, PeerLogic
from penstock.services.remote.lines import ManagerLine
from penstock.shuffle import EndOfPartition, PartitionId

_AGAIN_SECONDS = (0.02, 0.05, 0.1, 0.25)
_PAUSE_SECONDS = 0.1
_DAMAGES = 2
_LOOKS = 10
_STEPS = 4
"""The parts in which credit goes back: a word for each block would cost both sides a wake-up."""
_LONGEST_STEP = 64 << 20
"""A frame of credit names less than 4 GiB."""


class FetchedBlock(NamedTuple):
    """A block of a channel that has come, and the stream whose credit it takes."""

    channel: int
    head: BlockHead
    data: memoryview
    taken: Callable[[], None]


class FetchedEnd(NamedTuple):
    """A channel has come to its end: its sums as they were written, and the workers that had it."""

    channel: int
    sums: tuple[EndOfPartition, ...]
    where: str


E = TypeVar("E", bound=PenstockError)

Fetched = FetchedBlock | FetchedEnd | PenstockError


@dataclass(frozen=True, slots=True)
class WantedChannel:
    """A channel: its partition, the files that it reads, and the identity of the result if that is kept by name."""

    number: int
    partition: PartitionId
    files: range
    kept: str = ""


@dataclass(eq=False)
class _Source:
    """One stream of a group: files at one worker."""

    name: str
    address: str
    files: list[int]
    writers: dict[int, int]
    """The channel of each writer."""
    dataset: str
    located: ask.Located
    pages: deque[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=deque)
    """The writers and files that are yet to be asked for, each within what a worker answers at once."""
    sums: dict[int, list[EndOfPartition]] = field(default_factory=dict)
    """The sums of what has come, by channel."""
    damages: int = 0
    come: int = 0
    """The most bytes of the first page that have come over one connection."""

    def __post_init__(self) -> None:
        """Begin with the first page."""
        for some in ask.pieces(self.writers):
            step = ask.MOST_READ // len(some)
            self.pages += ((some, tuple(self.files[at : at + step])) for at in range(0, len(self.files), step))


class Fetcher:
    """Fetches the blocks of one gate's channels."""

    def __init__(self, line: ManagerLine, fetched: deque[Fetched], wake: Callable[[], None]) -> None:
        self._line = line
        self._settings = line.access.settings
        self._fetched = fetched
        self._wake = wake
        self._waiting: dict[int, WantedChannel] = {}
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: dict[int, set[_Source]] = {}
        """The sources that a channel waits for."""
        self._ends: dict[int, list[EndOfPartition]] = {}
        self._where: dict[int, list[str]] = defaultdict(list)
        self._began: dict[int, float] = {}

    def want(self, channels: Iterable[WantedChannel]) -> None:
        """Fetch these, too."""
        now = asyncio.get_running_loop().time()
        for channel in channels:
            self._waiting[channel.number] = channel
            self._began[channel.number] = now
        self._news.set()
        if not self._tasks:
            self._start(self._find)

    def close(self) -> None:
        """Fetch no more; idempotent."""
        for task in self._tasks:
            task.cancel()

    def _start(self, step: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = asyncio.ensure_future(self._guarded(step, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, step: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        try:
            await step(*arguments)
        except PenstockError as error:
            self._give(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the task waiting
            self._give(ControlError(f"rows could not be fetched: {error!r}"))

    def _give(self, fetched: Fetched) -> None:
        self._fetched.append(fetched)
        self._wake()

    # --- where they are

    async def _find(self) -> None:
        """Ask the manager for those that wait, again and again, until all are decided or late."""
        turn = 0
        while True:
            if self._waiting:
                await self._find_once()
            self._news.clear()
            pause = _AGAIN_SECONDS[min(turn, len(_AGAIN_SECONDS) - 1)] if self._waiting else None
            turn += 1
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
                turn = 0
            except TimeoutError:
                continue

    async def _find_once(self) -> None:
        by_result: dict[str, list[WantedChannel]] = defaultdict(list)
        for channel in self._waiting.values():
            by_result[channel.kept].append(channel)
        for kept, channels in by_result.items():
            for some in ask.pieces(channels):
                await self._find_those(kept, some)

    async def _find_those(self, kept: str, channels: Sequence[WantedChannel]) -> None:
        partitions = list(dict.fromkeys(channel.partition for channel in channels))
        found = await self._line.ask(ask.FindPartitions(tuple(partitions), kept))
        stories = dict(zip(partitions, found.stories, strict=True))
        groups: dict[tuple[str, range], list[WantedChannel]] = defaultdict(list)
        now = asyncio.get_running_loop().time()
        for channel in channels:
            story = stories[channel.partition]
            if story.state == RemoteState.COMPLETE:
                del self._waiting[channel.number]
                groups[str(channel.partition.dataset), channel.files].append(channel)
            elif (error := self._unreadable(channel, story, now)) is not None:
                del self._waiting[channel.number]
                self._give(error)
        for (dataset, files), members in groups.items():
            self._read_group(found.located[dataset], files, members, stories)

    def _unreadable(self, channel: WantedChannel, story: ask.PartitionStory, now: float) -> PartitionError | None:
        late = self._settings.request_timeout
        match story.state:
            case RemoteState.FAILED:
                return _told(channel, ProducerFailedError, f"has no rows: its producer failed: {story.cause}")
            case RemoteState.RELEASED:
                return _told(channel, PartitionReleasedError, "was released")
            case RemoteState.LOST:
                return _told(channel, PartitionLostError, f"is lost: {story.cause}")
            case _ if now - self._began[channel.number] > late:
                limit = f"{late:g} s (spark.penstock.remote.requestTimeout)"
                return _told(channel, PartitionNotProducedError, f"was not produced within {limit}")
            case _:
                return None

    def _read_group(
        self,
        located: ask.Located,
        files: range,
        members: list[WantedChannel],
        stories: Mapping[PartitionId, ask.PartitionStory],
    ) -> None:
        """Begin a stream at each worker that has any of these files, and rows of any of these writers."""
        files_at: dict[str, list[int]] = defaultdict(list)
        for file in files:
            for name in dict.fromkeys(located.places[file]):
                files_at[name].append(file)
        sources = []
        for name, theirs in files_at.items():
            writers = {
                stories[each.partition].writer: each.number
                for each in members
                if name in stories[each.partition].workers
            }
            if writers:
                address = located.addresses.get(name, "")
                dataset = str(members[0].partition.dataset)
                sources.append(_Source(name, address, theirs, writers, dataset, located))
        for each in members:
            self._left[each.number] = {source for source in sources if each.number in source.writers.values()}
            self._ends[each.number] = []
        credit = max(LEAST_CREDIT, self._settings.read_window // max(1, len(sources)))
        for source in sources:
            self._start(self._read, source, credit, {each.number: each for each in members})
        for each in members:
            self._end_if_all_came(each.number)

    # --- what they have

    async def _read(self, source: _Source, credit: int, members: Mapping[int, WantedChannel]) -> None:
        """Read a source to its end, over as many connections as that takes."""
        loop = asyncio.get_running_loop()
        patience = self._settings.retry_timeout
        end = loop.time() + patience
        blamed = members[next(iter(source.writers.values()))]
        while True:
            try:
                stream = FetchStream(source, self._give, patience)
                await stream.read(self._way(source, blamed), credit)
                break
            except (IncompleteDataError, PartitionReleasedError) as error:
                await self._refuse_what_is_lost(members)
                source.damages += 1
                if source.damages < _DAMAGES:
                    continue
                if len(source.writers) > 1:
                    self._split(source, credit, members)
                    return
                kind = IncompleteDataError if isinstance(error, IncompleteDataError) else PartitionLostError
                raise _told(blamed, kind, f"can't be read at worker {source.address}: {error}") from error
            except AuthenticationError:
                raise
            except (EnvironmentLostError, StorageError) as error:
                cause = f"worker {source.name} at {source.address} can't be read: {error}"
                await self._line.ask(ask.Suspect(source.name, cause))
                found = await self._refuse_what_is_lost(members)
                if source.dataset in found.located:
                    source.address = found.located[source.dataset].addresses.get(source.name, source.address)
                end = max(end, stream.moved + patience)
                if loop.time() > end:
                    raise _told(blamed, PartitionLostError, f"is lost: {cause}") from error
                await asyncio.sleep(_PAUSE_SECONDS)
        for channel in source.writers.values():
            self._where[channel].append(source.address.removeprefix("tcp://"))
            self._ends[channel] += source.sums.get(channel, [])
            self._left[channel].discard(source)
            self._end_if_all_came(channel)

    def _split(self, source: _Source, credit: int, members: Mapping[int, WantedChannel]) -> None:
        """Read each producer's blocks by themselves, to learn whose are damaged."""
        for writer, channel in source.writers.items():
            single = replace(source, writers={writer: channel}, pages=deque(), sums={}, damages=1, come=0)
            self._left[channel].discard(source)
            self._left[channel].add(single)
            self._start(self._read, single, credit, members)

    def _way(self, source: _Source, blamed: WantedChannel) -> Way:
        if not source.address:
            raise _told(blamed, PartitionLostError, f"is lost: worker {source.name} is gone")
        return Way(source.address, self._line.access.own, self._line.access.protection)

    async def _refuse_what_is_lost(self, members: Mapping[int, WantedChannel]) -> ask.Stories:
        """Raise the error that says why a partition of the group can't be read any more; else what is known of it."""
        channels = list(members.values())
        kept = channels[0].kept
        for asked_for in ask.pieces(channels):
            found = await self._line.ask(ask.FindPartitions(tuple(each.partition for each in asked_for), kept))
            for channel, story in zip(asked_for, found.stories, strict=True):
                if story.state == RemoteState.COMPLETE:
                    continue
                if (error := self._unreadable(channel, story, 0.0)) is not None:
                    raise error
        return found

    def _end_if_all_came(self, channel: int) -> None:
        if not self._left[channel]:
            where = ", ".join(self._where[channel]) or "nowhere"
            self._give(FetchedEnd(channel, tuple(self._ends[channel]), where))


class FetchStream:
    """The rest of a source, page by page, over one connection."""

    def __init__(self, source: _Source, give: Callable[[Fetched], None], patience: float) -> None:
        self._source = source
        self.moved = -math.inf
        """The time at which bytes came that are farther in their page than any before."""
        self._come = 0
        self._patience = patience
        self._owed = 0
        """The credit that the worker has, and since when it has enough for a block."""
        self._since = 0.0
        self._unsaid = 0
        self._number = 0
        """The number of the page, as a stream."""
        self._give = give
        self._left = 0
        self._taken = 0
        """The bytes that the task has taken and that are not credit again."""
        self._step = 0
        """The bytes that are given back together."""
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._news = asyncio.Event()
        self._is_open = False
        """True while a page is being read."""
        self._logic: PeerLogic | None = None

    async def read(self, way: Way, credit: int) -> None:
        """Read it to its end; raises IncompleteDataError, EnvironmentLostError, or what the worker says."""
        bulk = {int(BulkFrame.DATA): self._came, int(BulkFrame.BROKEN): self._broken}
        logic = self._logic = PeerLogic({}, bulk, self._lost, aligned_memory)
        self._step = min(credit // _STEPS, credit - LEAST_CREDIT, _LONGEST_STEP)
        connection = await way.connect(logic)
        try:
            self._owe(credit)
            while self._source.pages:
                await self._read_page(logic)
                self._source.pages.popleft()
                self._source.come = self._come = 0
                self._number += 1
        finally:
            self._logic = None
            connection.close()

    async def _read_page(self, logic: PeerLogic) -> None:
        """Read the first page that is left; its blocks may come ahead of the answer."""
        await self._wait(lambda: self._owed >= LEAST_CREDIT)
        (writers, files), source = self._source.pages[0], self._source
        self._unsaid = 0
        owner, grant = source.located.owner, source.located.grant
        packed = struct.pack(f"<{len(files)}I", *files)
        wanted = ask.OpenReader(self._number, source.dataset, writers, packed, self._owed, owner, grant)
        reading = await answered(logic, wanted, self._patience)
        self._since = self._loop.time()
        self._is_open = True
        self._say()
        self._left += reading.size
        await self._wait(lambda: not self._left)
        self._is_open = False
        for writer, *sums in READ_SUM.iter_unpack(reading.sums):
            source.sums.setdefault(source.writers[writer], []).append(EndOfPartition(*sums))

    async def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until it is, or this stream has failed."""
        while not is_over():
            if self._done.done():
                await self._done
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience / _LOOKS):
                    await self._news.wait()
            if self._is_open:
                self._refuse_silence()

    def _came(self, body: memoryview) -> None:
        """A run of blocks has come: all of them go to their channels, or none where one is damaged."""
        data = body[PAIR.size :]
        self._since = self._loop.time()
        self._owed -= len(data)
        self._come += len(data)
        if self._come > self._source.come:
            self._source.come, self.moved = self._come, self._since
        try:
            blocks = list(read_blocks(data))
        except IncompleteDataError as error:
            self._fail(error)
            return
        for head, rows in blocks:
            channel = self._source.writers.get(head.writer)
            if channel is not None:
                taken = functools.partial(self._credit, HEAD.size + len(rows))
                self._give(FetchedBlock(channel, head, rows, taken))
        self._left -= len(data)
        if not self._left:
            self._news.set()

    def _broken(self, body: memoryview) -> None:
        self._fail(carried_error(unpack(body[4:])))

    def _lost(self, error: BaseException | None) -> None:
        self._fail(EnvironmentLostError(str(error or "the connection was closed")))

    def _fail(self, error: PenstockError) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # looked at, as `_wait` may never await it
            self._news.set()

    def _credit(self, size: int) -> None:
        """The task has taken a block. In its thread."""
        self._taken += size
        if self._taken >= self._step:
            taken, self._taken = self._taken, 0
            self._loop.call_soon_threadsafe(self._more, taken)

    def _more(self, size: int) -> None:
        if self._logic is not None:
            self._unsaid += size
            self._owe(size)
            self._say()
            self._news.set()

    def _say(self) -> None:
        """Tell the worker of credit that it has not heard of; between pages the next question does."""
        if self._is_open and self._logic is not None and self._unsaid:
            self._logic.send_bulk(BulkFrame.CREDIT, PAIR.pack(self._number, self._unsaid))
            self._unsaid = 0

    def _owe(self, size: int) -> None:
        if self._owed < LEAST_CREDIT:
            self._since = self._loop.time()
        self._owed += size

    def _refuse_silence(self) -> None:
        """Give up a worker that may send, and does not."""
        if self._owed >= LEAST_CREDIT and self._loop.time() - self._since > self._patience:
            self._fail(EnvironmentLostError(f"it has sent nothing for {self._patience:g} s"))


def aligned_memory(_: int, length: int) -> memoryview:
    """Memory in which batches may lie as they are."""
    return memoryview(pa.allocate_buffer(length)).cast("B")


def _told(channel: WantedChannel, kind: type[E], what: str) -> E:
    return about(channel.partition, kind(f"partition {channel.partition} {what}"))
