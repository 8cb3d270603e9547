# SPDX-License-Identifier: Apache-2.0
"""A worker's side of a connection that pushes: promises, blocks, acknowledgements, commits.

Rules: memory that was promised is used soon. The connection of a task that sends no block for `UNUSED_SECONDS`, and
less than `_PACE` bytes of one, is ended, and its memory is free: a process that stands still makes a new one when it
goes on, and sends again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

from penstock.errors import IncompleteDataError, ProtocolError
from penstock.link.wire import Done
from penstock.remote import messages as ask
from penstock.remote.blocks import BLOCK_BYTES, HEAD, BlockHead, charge, is_whole, read_head
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.log_history import read_word
from penstock.remote.merged import BlockFate, MergedDataset, Spot
from penstock.remote.merged_disk import WriteJob
from penstock.remote.peers import user_of
from penstock.remote.wire import ACK, PAIR, SUM, BulkFrame, PeerLogic, no_rows
from penstock.remote.worker_index import CommittedWriter

UNUSED_SECONDS = 10.0
_BYTES_OF_ENTRY = 16
"""So many bytes of its name count as one more: a beat has the names of all writers, and is one frame."""
_PACE = 64 << 10
_MOST_NAMED, _MOST_WRITERS = 1_100, 16
"""Bytes of a partition's name, with that of its job, and writers of one connection: a task's has one."""
TAKEN = 0
FATES = {
    BlockFate.STORE: TAKEN,
    BlockFate.REPEAT: 1,
    BlockFate.GAP: 2,
    BlockFate.STALE: 3,
    BlockFate.FULL: 4,
    BlockFate.OVER: 6,
    BlockFate.USER_OVER: 7,
}
DAMAGED = 5


class PushSession:
    """One connection's writers."""

    logic: PeerLogic

    def __init__(self, holdings: WorkerHoldings, application: str, number: int, secret: bytes = b"") -> None:
        self._holdings = holdings
        self._secret = secret
        self._application = application
        self._user = user_of(application)
        self._number = number
        self._writers: dict[int, MergedDataset] = {}
        self._acks: list[bytes] = []
        self._is_open = True
        self._entered: dict[int, int] = {}
        """By writer: the names with which it came, and itself."""
        self._arriving = 0
        """The memory of the block that is being received."""
        self._came = 0
        """The blocks that have come."""
        self._pace = -1, 0
        self._moved = 0.0

    def open(self, asked: ask.EnterWriter) -> ask.Opened:
        """A writer pushes from now on; ProtocolError for names of more than there can be."""
        files, named = len(asked.begins) // PAIR.size, len(str(asked.partition).encode())
        before = self._entered.get(asked.writer, 0)
        is_too_many = not before and len(self._entered) >= _MOST_WRITERS
        if is_too_many or files > ask.MOST_FILES or named > _MOST_NAMED:
            raise ProtocolError(
                f"a writer of {asked.partition!s:.50} comes with {files:,} files and a name of {named:,} bytes, and"
                f" {len(self._entered)} others are here"
            )
        entries = 1 + files + (named + len(self._application.encode())) // _BYTES_OF_ENTRY
        self._holdings.entering(self._user, max(0, entries - before))
        self._entered[asked.writer] = max(entries, before)
        if asked.word:
            self._holdings.store.words.hear(*read_word(self._secret, asked.word))
        dataset = self._holdings.dataset(self._application, str(asked.partition.dataset))
        dataset.enter(asked.writer, str(asked.partition), dict(PAIR.iter_unpack(asked.begins)))
        self._writers[asked.writer] = dataset
        return ask.Opened(0)

    def commit(self, asked: ask.CommitPushed) -> asyncio.Future[Any]:
        """A writer has pushed all."""
        dataset = self._holdings.known(self._application, str(asked.partition.dataset))
        return asyncio.ensure_future(self._settled(dataset, asked))

    def want(self, body: memoryview) -> None:
        """Blocks wait for memory."""
        for (length,) in struct.iter_unpack("<I", body):
            if not 0 < length <= BLOCK_BYTES:
                raise ProtocolError(f"a block of {length} bytes is announced: {BLOCK_BYTES} is the limit")
            self._holdings.credit.want(self._number, charge(length))
        self._holdings.promise()

    def allocate(self, kind: int, length: int) -> memoryview:
        """Memory for a block: only within what was promised."""
        if kind != BulkFrame.PUSH:
            return no_rows(kind, length)
        nbytes = charge(length - HEAD.size)
        self._holdings.credit.arrived(self._number, nbytes)
        self._arriving = nbytes
        return self._holdings.memory.take(length)

    def push(self, data: memoryview) -> None:
        """A block has come."""
        nbytes, self._arriving = self._arriving, 0
        self._came += 1
        self._holdings.figures.pushed += len(data)
        try:
            head = read_head(data)
            dataset = self._writers[head.writer]
            if head.file >= ask.MOST_FILES:
                raise IncompleteDataError(f"it is of file {head.file}, and {ask.MOST_FILES:,} is the limit")
        except (IncompleteDataError, KeyError) as error:
            self._holdings.stored(self._number, nbytes)
            raise ProtocolError(
                f"a block whose head was damaged, or that is nobody's here, has come: {error}"
            ) from error
        if not is_whole(head, data[HEAD.size :]):
            self._refuse(head, DAMAGED, data, nbytes)
            return
        verdict, spot = dataset.offer(head)
        if verdict is BlockFate.REPEAT:
            self._drop(data, nbytes)
            dataset.repeated(head, lambda fate: self._acknowledge(head, FATES[fate]))
            return
        if spot is None:
            self._refuse(head, FATES[verdict], data, nbytes)
            return

        began = time.monotonic()

        def done(error: Exception | None) -> None:
            self._holdings.users.moved(self._user, len(data), time.monotonic() - began)
            self._written(dataset, head, spot, error)

        def let_go() -> None:
            self._holdings.memory.give(data)
            self._holdings.stored(self._number, nbytes)

        self._holdings.store.write(WriteJob(spot, data, done, let_go))

    def look(self, now: float) -> None:
        """See whether what was promised is used; end the connection if it is not."""
        pace = self._came, self.logic.decoder.filled // _PACE
        is_owing = self._arriving or self._holdings.credit.owes(self._number)
        if not is_owing or pace != self._pace:
            self._pace, self._moved = pace, now
        elif now - self._moved >= UNUSED_SECONDS:
            self.logic.hang_up(
                ProtocolError(f"memory for its blocks was promised, and none has come for {now - self._moved:.0f} s")
            )

    def close(self) -> None:
        """The connection is over; what was sent is stored all the same."""
        self._is_open = False
        self._holdings.leaving(self._user, sum(self._entered.values()))
        self._entered = {}
        if self._arriving:
            self._holdings.stored(self._number, self._arriving)
        self._holdings.leave(self._number)

    def _written(self, dataset: MergedDataset, head: BlockHead, spot: Spot, error: Exception | None) -> None:
        if error is not None:
            dataset.failed(head)
        is_stored = error is None and dataset.stored(head, spot)
        self._acknowledge(head, TAKEN if is_stored else FATES[BlockFate.FULL])

    def _refuse(self, head: BlockHead, verdict: int, data: memoryview, nbytes: int) -> None:
        self._acknowledge(head, verdict)
        self._drop(data, nbytes)

    def _drop(self, data: memoryview, nbytes: int) -> None:
        self._holdings.figures.dropped += len(data)
        self._holdings.memory.give(data)
        self._holdings.stored(self._number, nbytes)

    def _acknowledge(self, head: BlockHead, verdict: int) -> None:
        if not self._is_open:
            return
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._send_acks)
        self._acks.append(ACK.pack(head.writer, head.file, head.number, verdict))

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        self.logic.send_bulk(BulkFrame.ACK, b"".join(acks))

    async def _settled(self, dataset: MergedDataset, asked: ask.CommitPushed) -> Done:
        if len(asked.sums) % SUM.size or len(asked.ends) % PAIR.size:
            raise ProtocolError(f"a commit has {len(asked.sums)} bytes of sums and {len(asked.ends)} of ends")
        name, partition, writer = str(asked.partition.dataset), str(asked.partition), asked.writer
        pushed = dataset.commit(writer, partition, asked.sums, dict(PAIR.iter_unpack(asked.ends)))
        if pushed is not None:
            committed = CommittedWriter(self._application, name, writer, partition, pushed)
            dataset.settled(writer, await self._holdings.store.settle(committed))
        return Done()
