# SPDX-License-Identifier: Apache-2.0
"""Blocks that are pushed are stored once each, within the memory there is, whatever a wire and a disk do to them.

Writers' queues, the worker's promises and its merged files are the real cores; the wire between them is a model that
damages, cuts and lets others go first.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.errors import IncompleteDataError, PartitionReleasedError, QuotaError, StaleError
from penstock.remote.blocks import BLOCK_BYTES, HEAD, BlockHead, charge, is_whole, read_blocks, read_head
from penstock.remote.merged import PLACE, BlockFate, Held, MergedDataset, Room, Spot
from penstock.remote.push_credit import MemoryMarks, PushCredit
from penstock.remote.pushed import DAMAGED, FATES, TAKEN
from penstock.remote.wire import SUM
from penstock.services.remote.push_queue import PushedBlock, PushQueue

WINDOW = 64 << 10


def block(writer: int, file: int, number: int, length: int = 4096) -> PushedBlock:
    """A block whose bytes tell which it is."""
    data = bytes([writer % 251, file, number % 251, 7]) * (length // 4)
    head = BlockHead(len(data), writer, file, number, xxhash.xxh3_64_intdigest(data))
    return PushedBlock(file, number, len(data), head.packed(), (data,), (1, len(data), number))


@dataclass
class Disk:
    """The worker's files: bytes by path and offset."""

    blocks: dict[tuple[int, int], bytes] = field(default_factory=dict)


class ModelWire:
    """One writer's connection to a worker, over which things happen in an order that a seed chooses."""

    def __init__(self, worker: ModelWorker, writer: int, blocks: list[PushedBlock]) -> None:
        self.worker = worker
        self.writer = writer
        self.queue = PushQueue(WINDOW)
        self.queue.add(blocks)
        self.stored: list[PushedBlock] = []
        self.sessions = itertools.count(writer * 1000)
        self.session = -1
        self.up: deque[PushedBlock] = deque()
        self.connect()

    def connect(self) -> None:
        """Begin a connection."""
        self.session = next(self.sessions)
        self.worker.credit.enter(self.session)
        self.worker.wires[self.session] = self
        self.announce()

    def announce(self) -> None:
        """Announce what the window allows."""
        for each in self.queue.announce():
            self.worker.credit.want(self.session, charge(each.length))

    def cut(self) -> None:
        """The connection breaks: what is on the way is gone, what the worker wrote stays."""
        self.worker.credit.leave(self.session)
        del self.worker.wires[self.session]
        self.up.clear()
        self.queue.broken()
        self.connect()

    def acknowledged(self, session: int, head: BlockHead, fate: int) -> None:
        """The worker says what became of a block, unless the connection broke meanwhile."""
        if session == self.session:
            found = self.queue.acknowledged(head.file, head.number, fate)
            if found is not None:
                self.stored.append(found)
            self.announce()


class ModelWorker:
    """The worker's cores, with blocks that wait for a disk."""

    def __init__(self, cap: int) -> None:
        self.credit = PushCredit(MemoryMarks.of(cap))
        self.dataset = MergedDataset("job-e0", itertools.count(), Room())
        self.disk = Disk()
        self.wires: dict[int, ModelWire] = {}
        self.writing: deque[tuple[int, ModelWire, BlockHead, Spot, bytes]] = deque()
        self.most = 0

    def promise(self) -> None:
        """Promise memory, and let what it is for be sent."""
        for session, _ in self.credit.promises():
            wire = self.wires[int(str(session))]
            wire.up.extend(wire.queue.promised(1))
        assert 0 <= self.credit.used <= self.credit.marks.cap
        self.most = max(self.most, self.credit.used)

    def receive(self, wire: ModelWire, *, damaged: bool) -> None:
        """The next block of a wire comes."""
        sent = wire.up.popleft()
        data = sent.head + bytes(sent.parts[0])
        if damaged:
            data = data[: HEAD.size] + bytes([data[HEAD.size] ^ 1]) + data[HEAD.size + 1 :]
        self.credit.arrived(wire.session, charge(sent.length))
        view = memoryview(data)
        head = read_head(view)
        fate, spot = BlockFate.STORE, None
        if is_whole(head, view[HEAD.size :]):
            fate, spot = self.dataset.offer(head)
            number = FATES[fate]
        else:
            number = DAMAGED
        if spot is None:
            session = wire.session
            self.credit.stored(session, charge(sent.length))
            if number == FATES[BlockFate.REPEAT]:
                self.dataset.repeated(head, lambda fate: wire.acknowledged(session, head, FATES[fate]))
            else:
                wire.acknowledged(session, head, number)
        else:
            self.writing.append((wire.session, wire, head, spot, data))

    def write(self) -> None:
        """The disk takes the next block."""
        session, wire, head, spot, data = self.writing.popleft()
        assert (spot.path, spot.offset) not in self.disk.blocks
        self.disk.blocks[spot.path, spot.offset] = data
        self.dataset.stored(head, spot)
        wire.acknowledged(session, head, TAKEN)
        self.credit.stored(session, charge(head.length))


def blocks_of(writer: int, files: int, each: int) -> list[PushedBlock]:
    """Blocks of a writer for all files, in regions."""
    return [block(writer, file, number) for number in range(each) for file in range(files)]


@settings(max_examples=examples(60), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 5), st.integers(1, 12))
def test_every_block_is_stored_once_whatever_breaks(
    chance: random.Random, writers: int, files: int, each: int
) -> None:
    """With damage, cuts and repeats all blocks are there at the end, in order, once, and memory keeps its cap."""
    worker = ModelWorker(6 * charge(4096))
    wires = []
    for writer in range(1, writers + 1):
        worker.dataset.enter(writer, f"job-e0.{writer}#0")
        wires.append(ModelWire(worker, writer, blocks_of(writer, files, each)))
    cuts = 0
    for _ in range(200_000):
        if all(wire.queue.is_empty for wire in wires) and not worker.writing:
            break
        worker.promise()
        wire = chance.choice(wires)
        match chance.randrange(12):
            case 0 if cuts < 20:
                cuts += 1
                wire.cut()
            case 1 | 2 | 3 | 4 if worker.writing:
                worker.write()
            case number if wire.up:
                worker.receive(wire, damaged=number == 11 and chance.random() < 0.05)
            case _ if worker.writing:
                worker.write()
    assert all(wire.queue.is_empty for wire in wires)
    for wire in wires:
        ends = dict.fromkeys(range(files), each)
        pushed = worker.dataset.commit(wire.writer, f"job-e0.{wire.writer}#0", b"", ends)
        assert pushed is not None
        assert pushed.held == (1 << files) - 1
        paths = worker.dataset.paths(range(files))
        places = [(paths[file], offset) for file, offset, _ in PLACE.iter_unpack(pushed.places)]
        found = [head for place in places for head, _ in read_blocks(memoryview(worker.disk.blocks[place]))]
        in_order = sorted((head.file, head.number) for head in found)
        assert in_order == [(file, number) for file in range(files) for number in range(each)]
    assert worker.credit.used == worker.credit.waiting == 0


def test_memory_is_promised_in_turns_and_marks_stop_it() -> None:
    """Above the high mark nobody gets more until it is below the low one; a session that has nothing still does."""
    credit = PushCredit(MemoryMarks(1000, 700, 400))
    for name in "ab":
        credit.enter(name, f"{name}/app", name)
    for _ in range(10):
        credit.want("a", 200)
    assert [nbytes for _, nbytes in credit.promises()] == [200] * 4
    assert credit.is_over
    for _ in range(4):
        credit.arrived("a", 200)
    credit.want("b", 200)
    assert credit.promises() == [("b", 200)], "one that has nothing is served while the cap has room"
    credit.arrived("b", 200)
    for _ in range(2):
        credit.stored("a", 200)
        assert not credit.promises(), f"{credit.used} bytes are used"
    credit.stored("a", 200)
    assert credit.promises(), "below the low mark it goes on"
    credit.leave("a")
    credit.leave("b")
    assert credit.used == 400, "what was sent is held until it is stored"


def test_no_application_and_no_user_has_all_memory() -> None:
    """One with any number of connections leaves room for others, and the one that has least is served first."""
    credit = PushCredit(MemoryMarks(1000, 1000, 1000))
    parties = {f"{user}{app}{line}": (f"{user}/{app}", user) for user in "ab" for app in (1, 2) for line in range(9)}
    for name, owners in parties.items():
        credit.enter(name, *owners)
    for name in [name for name in parties if name.startswith("a1")]:
        for _ in range(9):
            credit.want(name, 20)
    assert len(credit.promises()) == 45, "nine tenths"
    credit.want("a20", 20)
    credit.want("a20", 20)
    assert credit.promises() == [("a20", 20), ("a20", 20)]
    for name in ("a21", "b10"):
        credit.want(name, 20)
    assert credit.promises() == [("b10", 20)], "the user a has 94 of a hundred"
    assert credit.waiting == 81 - 45 + 1
    for name in parties:
        credit.leave(name)
    assert credit.used == credit.waiting == 0
    assert not credit.promises()


def test_the_first_writer_that_commits_has_the_partition() -> None:
    """Another writer of the same attempt, one that was discarded, and one with missing blocks are refused."""
    dataset = MergedDataset("job-e0", itertools.count(), Room())
    for writer in (1, 2, 3):
        dataset.enter(writer, "job-e0.0#0")
        _store(dataset, block(writer, 0, 0))
    with pytest.raises(IncompleteDataError, match="up to 2"):
        dataset.commit(1, "job-e0.0#0", b"", {0: 2})
    sums = SUM.pack(0, 1, 1, 1)
    pushed = dataset.commit(1, "job-e0.0#0", sums, {0: 1})
    assert pushed == dataset.commit(1, "job-e0.0#0", b"", {0: 1}), "a commit that comes again is the first"
    assert pushed is not None
    assert (pushed.files[0].path, pushed.sums) == (0, sums)
    with pytest.raises(StaleError):
        dataset.commit(2, "job-e0.0#0", b"", {0: 1})
    assert dataset.offer(_head(block(1, 0, 0)))[0] is BlockFate.REPEAT
    dataset.discard(3)
    assert dataset.offer(_head(block(3, 0, 1)))[0] is BlockFate.STALE
    with pytest.raises(StaleError):
        dataset.enter(3, "job-e0.0#0")
    with pytest.raises(PartitionReleasedError):
        dataset.readable([1])
    dataset.settled(1, 40)
    assert dataset.readable([1]) == {1: Held(1, 40)}, "when the index has it"
    assert dataset.commit(1, "job-e0.0#0", b"", {0: 1}) is None, "there is nothing to be kept again"
    with pytest.raises(PartitionReleasedError):
        dataset.readable([1, 2])
    assert dataset.discard(2) == []
    assert dataset.discard(1) == [0], "the file goes with its last writer"


def test_a_gap_a_repeat_and_a_full_file_are_told() -> None:
    """Numbers that come out of order are refused, and after a failed write nothing more is taken for the file."""
    dataset = MergedDataset("job-e0", itertools.count(), Room())
    dataset.enter(1, "p", {0: 3})
    _store(dataset, block(1, 0, 3))
    assert dataset.offer(_head(block(1, 0, 5)))[0] is BlockFate.GAP
    assert dataset.offer(_head(block(1, 1, 1)))[0] is BlockFate.GAP, "a file begins with 0"
    assert dataset.offer(_head(block(1, 0, 2)))[0] is BlockFate.REPEAT
    fate, _ = dataset.offer(_head(block(1, 0, 4)))
    assert fate is BlockFate.STORE
    dataset.failed(_head(block(1, 0, 4)))
    assert dataset.offer(_head(block(1, 0, 4)))[0] is BlockFate.FULL
    queue = PushQueue(WINDOW)
    queue.add([block(1, 0, 4), block(1, 1, 0), block(1, 0, 5)])
    for each in queue.promised(len(queue.announce())):
        queue.acknowledged(each.file, each.number, FATES[BlockFate.FULL] if each.file == 0 else TAKEN)
    queue.add([block(1, 0, 6)])
    assert [each.number for each in queue.take_full()[0]] == [4, 5, 6]
    assert queue.is_empty
    dataset.restore([(2, "p", Held(1, 1))], {0: 7})
    dataset.find({})
    dataset.enter(3, "q")
    assert dataset.offer(_head(block(3, 0, 0)))[0] is BlockFate.FULL, "its file is away, with its disk"
    assert dataset.offer(_head(block(3, 1, 0)))[0] is BlockFate.STORE


def test_an_application_has_no_more_than_its_quota() -> None:
    """Of all its datasets together; what was dropped makes room, and a worker that starts again counts on."""
    made = block(1, 0, 0)
    size = HEAD.size + made.length
    room = Room(quota=2 * size)
    paths = itertools.count()
    first, second = MergedDataset("job-e0", paths, room), MergedDataset("job-e1", paths, room)
    for dataset in (first, second):
        dataset.enter(1, "p")
        _store(dataset, made)
    assert first.offer(_head(block(1, 0, 1)))[0] is BlockFate.OVER
    assert first.offer(_head(made))[0] is BlockFate.REPEAT, "what is there needs no room"
    first.commit(1, "p", b"", {0: 1})
    again = Room(quota=2 * size)
    restored = MergedDataset("job-e0", paths, again)
    assert restored.restore([(1, "p", Held(1, 40))], {0: 0, 5: 9}) == {0}
    restored.find({0: size})
    assert again.used == size
    assert second.discard(1) == [1]
    assert room.used == size
    assert first.drop_all() == [0]
    assert room.used == 0
    queue = PushQueue(WINDOW)
    queue.add([made])
    queue.promised(len(queue.announce()))
    with pytest.raises(QuotaError, match="--quota"):
        queue.acknowledged(0, 0, FATES[BlockFate.OVER])


def test_what_outlives_an_application_counts_for_its_user() -> None:
    """All applications of a user have one quota together; a result that is kept is in it until it goes."""
    made = block(1, 0, 0)
    size = HEAD.size + made.length
    user, paths = Room(quota=2 * size), itertools.count()
    ended, writing, third = (MergedDataset(f"job-e{n}", paths, Room(user=user)) for n in range(3))
    for dataset in (ended, writing, third):
        dataset.enter(1, "p")
    for dataset in (ended, writing):
        _store(dataset, made)
    assert third.offer(_head(made))[0] is BlockFate.USER_OVER
    ended.commit(1, "p", b"", {0: 1})
    again = Room(quota=2 * size)
    restored = MergedDataset("job-e0", paths, Room(user=again))
    restored.restore([(1, "p", Held(1, 40))], {0: 0})
    restored.find({0: size})
    assert again.used == size
    ended.drop_all()
    _store(third, made)
    assert user.used == 2 * size
    for dataset in (writing, third):
        dataset.discard(1)
    assert user.used == 0
    queue = PushQueue(WINDOW)
    queue.add([made])
    queue.promised(len(queue.announce()))
    with pytest.raises(QuotaError, match=r"with the results that it keeps by name.*--user-quota"):
        queue.acknowledged(0, 0, FATES[BlockFate.USER_OVER])


@pytest.mark.parametrize("at", [0, 5, 20, HEAD.size - 1, HEAD.size, HEAD.size + 100])
def test_a_flipped_bit_is_found(at: int) -> None:
    """Wherever it is, in the head or in the bytes."""
    made = block(9, 1, 2)
    data = bytearray(made.head + bytes(made.parts[0]))
    assert [head.number for head, _ in read_blocks(memoryview(bytes(data)))] == [2]
    data[at] ^= 4
    with pytest.raises(IncompleteDataError):
        list(read_blocks(memoryview(bytes(data))))


def test_the_largest_block_fits() -> None:
    """The charge of a block is its buffer, whatever its size."""
    assert charge(BLOCK_BYTES) == 2 * BLOCK_BYTES
    assert charge(8) == 4096
    assert charge(8192 - HEAD.size) == 8192


def _head(made: PushedBlock) -> BlockHead:
    return read_head(memoryview(made.head))


def _store(dataset: MergedDataset, made: PushedBlock) -> None:
    fate, spot = dataset.offer(_head(made))
    assert fate is BlockFate.STORE
    assert spot is not None
    dataset.stored(_head(made), spot)
