# SPDX-License-Identifier: Apache-2.0
"""The same service for an event loop: each writer and reader works in a thread of its own, and no call blocks.

A call whose task is cancelled is stopped: its writer gives its part up, its reader hangs up, and only then the
cancellation goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from penstock.client.access import ClientAccess
from penstock.client.parts import Kept, Part
from penstock.client.reading import PartRows
from penstock.client.service import ShuffleClient, connect, join
from penstock.client.writing import ClientPartWriter, ResultWriter
from penstock.errors import PenstockError

A = TypeVar("A")


class Stoppable(Protocol):
    """A writer or a reader, which can be cancelled."""

    def cancel(self) -> None:
        """Have the call under way stop. Any thread."""

    def close(self) -> None:
        """Give back what it holds; idempotent."""


S = TypeVar("S", bound=Stoppable)
W = TypeVar("W", ClientPartWriter, ResultWriter)
E = TypeVar("E", Part, Kept)


class _Worker(Generic[S]):
    """A writer or reader that is made in a thread of its own, and used there."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._item: S | None = None
        self._is_closed = False
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "penstock-client-call")

    async def run(self, call: Callable[[S], A]) -> A:
        """Call this with the writer or reader; a cancelled call is stopped, and what it belongs to closed."""
        if self._is_closed:
            raise PenstockError("this writer or reader is closed: begin another one")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self._called, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._item is not None:
                self._item.cancel()
            await asyncio.wait({future})
            if not future.cancelled():
                future.exception()  # no caller waits for what it ended with
            await self.close()
            raise

    async def close(self) -> None:
        """Close it, and end the thread; idempotent."""
        self._is_closed = True
        item, self._item = self._item, None
        if item is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, item.close)
        self._pool.shutdown(wait=False)

    def _called(self, call: Callable[[S], A]) -> A:
        if self._item is None:
            self._item = self._make()
        return call(self._item)


class AsyncWriter(Generic[W, E]):
    """The form of a `ClientPartWriter` or a `ResultWriter` for an event loop: `async with`, `await write(...)`."""

    def __init__(self, make: Callable[[], W], finish: Callable[[W], E]) -> None:
        self._worker: _Worker[W] = _Worker(make)
        self._end: Callable[[W], E] = finish
        self._done: list[E] = []

    async def write(self, batch: pa.RecordBatch | pa.Table, to: int = 0) -> None:
        """Append rows to a subpartition of a part, or to a partition of a result."""
        await self._worker.run(lambda writer: writer.write(batch, to))

    async def finish(self) -> E:
        """Complete it; the same answer when it is called again."""
        if not self._done:
            self._done.append(await self._worker.run(self._end))
        return self._done[0]

    async def close(self) -> None:
        """Give up what was not finished; idempotent."""
        await self._worker.close()

    async def __aenter__(self) -> Self:
        try:
            await self._worker.run(lambda _: None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.finish()
        finally:
            await self.close()


class AsyncRows(AsyncIterator[pa.RecordBatch]):
    """The form of a `PartRows` for an event loop: `async for batch in rows`."""

    def __init__(self, make: Callable[[], PartRows]) -> None:
        self._worker = _Worker(make)
        self._is_over = False

    async def __anext__(self) -> pa.RecordBatch:
        batch = None if self._is_over else await self._next()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def read_all(self) -> pa.Table:
        """All batches that are left, as a table in memory."""
        self._is_over = True
        try:
            return await self._worker.run(PartRows.read_all)
        finally:
            await self.close()

    async def close(self) -> None:
        """Fetch no more; idempotent."""
        self._is_over = True
        await self._worker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _next(self) -> pa.RecordBatch | None:
        try:
            batch = await self._worker.run(PartRows.next)
        except BaseException:
            await self.close()
            raise
        if batch is None:
            await self.close()
        return batch


class AsyncShuffleClient:
    """A `ShuffleClient` for an event loop; its calls mean the same."""

    def __init__(self, make: Callable[[], ShuffleClient]) -> None:
        self._make = make
        self._service: ShuffleClient | None = None

    @property
    def access(self) -> ClientAccess:
        """The value by which other processes `join` this application. It has the application's secret in it."""
        return self._used().access

    def write(self, name: str, schema: pa.Schema, partitions: int = 1) -> AsyncWriter[ResultWriter, Kept]:
        """Begin a result; as of `ShuffleClient.write`."""
        service = self._used()
        return AsyncWriter(lambda: service.write(name, schema, partitions), ResultWriter.finish)

    def read(self, name: str, partition: int | None = None) -> AsyncRows:
        """The rows of a result, or of one of its partitions; as of `ShuffleClient.read`."""
        service = self._used()
        return AsyncRows(lambda: service.read(name, partition))

    def write_part(
        self, schema: pa.Schema, subpartitions: int = 1, keys: Sequence[str] = ()
    ) -> AsyncWriter[ClientPartWriter, Part]:
        """Begin a part; as of `ShuffleClient.write_part`."""
        service = self._used()
        return AsyncWriter(lambda: service.write_part(schema, subpartitions, keys), ClientPartWriter.finish)

    def read_parts(self, parts: Iterable[Part], subpartition: int = 0) -> AsyncRows:
        """The rows of one subpartition of all these parts."""
        service, wanted = self._used(), tuple(parts)
        return AsyncRows(lambda: service.read_parts(wanted, subpartition))

    async def find(self, name: str) -> Kept | None:
        """The result under a name, or None."""
        return await self._run(lambda service: service.find(name))

    async def keep(self, name: str, parts: Iterable[Part]) -> Kept:
        """Put complete parts under a name; as of `ShuffleClient.keep`."""
        wanted = tuple(parts)
        return await self._run(lambda service: service.keep(name, wanted))

    async def release(self, parts: Iterable[Part]) -> None:
        """Have parts removed that are under no name."""
        wanted = tuple(parts)
        await self._run(lambda service: service.release(wanted))

    async def close(self) -> None:
        """Give up what is being written, and hang up; idempotent."""
        service, self._service = self._service, None
        if service is not None:
            await _in_thread(service.close)

    async def __aenter__(self) -> Self:
        pool = concurrent.futures.ThreadPoolExecutor(1, "penstock-client-call")
        made = pool.submit(self._make)
        pool.shutdown(wait=False)
        try:
            self._service = await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            made.add_done_callback(_close_unused)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _used(self) -> ShuffleClient:
        if self._service is None:
            raise PenstockError("an AsyncShuffleClient is used within its `async with` block: it is not connected")
        return self._service

    async def _run(self, call: Callable[[ShuffleClient], A]) -> A:
        return await _in_thread(functools.partial(call, self._used()))


def connect_async(
    address: str | Path,
    *,
    user: str = "",
    key: str | Path = "",
    application: str = "",
    conf: Mapping[str, str] | None = None,
) -> AsyncShuffleClient:
    """The form of `connect` for an event loop, used by `async with`. Errors come where the block begins."""
    return AsyncShuffleClient(lambda: connect(address, user=user, key=key, application=application, conf=conf))


def join_async(access: ClientAccess) -> AsyncShuffleClient:
    """The form of `join` for an event loop."""
    return AsyncShuffleClient(lambda: join(access))


def _close_unused(made: concurrent.futures.Future[ShuffleClient]) -> None:
    """Close a client that was connected when no caller waited for it any more."""
    if not made.cancelled() and made.exception() is None:
        made.result().close()


async def _in_thread(call: Callable[[], A]) -> A:
    """Call this in a thread of its own: those that asyncio has may all wait for each other."""
    pool = concurrent.futures.ThreadPoolExecutor(1, "penstock-client-call")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, call)
    finally:
        pool.shutdown(wait=False)
