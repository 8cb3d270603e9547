# SPDX-License-Identifier: Apache-2.0
"""Both cores joined by two byte streams that are cut at random, under random interleavings of everything."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from network_parts import Gate, Provider, QueueView, RecordingSink, partition
from penstock.buffer.data_types import DataType
from penstock.connection.frames import HEADER, OutgoingFrame
from penstock.network.frames import FrameType
from penstock.network.messages import AddCredit, BufferResponse, Message
from penstock.network.receiver import ChannelRequest, ConnectionCore, RemoteInputChannel
from penstock.network.sender import PartitionRequestQueue


class Pair:
    """A client core and a serving core; bytes in flight both ways."""

    def __init__(self, exclusive: list[int], floating: int) -> None:
        self.provider = Provider()
        self.server = PartitionRequestQueue(self.provider)
        self.client = ConnectionCore("peer")
        self.gate = Gate(floating, channels=1, exclusive=sum(exclusive))
        self.to_client, self.to_server = bytearray(), bytearray()
        self.views: list[QueueView] = []
        self.sinks: list[RecordingSink] = []
        self.channels: list[RemoteInputChannel] = []
        self.served: list[int] = []
        for index, count in enumerate(exclusive):
            self.views.append(self.provider.register(partition(index)))
            sink = self.gate.sink(count, hold=True)
            sink.channel = self.client.open_channel(ChannelRequest(partition(index), 0, 0), sink, sink.credit)
            self.sinks.append(sink)
            self.channels.append(sink.channel)

    def write(self, side: str) -> bool:
        """One frame goes to the wire."""
        core, wire = (self.server, self.to_client) if side == "server" else (self.client, self.to_server)
        frame = core.next_frame()
        if frame is None:
            return False
        for part in frame.parts:
            wire.extend(part)
        if frame.recycle is not None:
            frame.recycle()
        return True

    def read(self, side: str, limit: int) -> bool:
        """At most `limit` bytes come off the wire."""
        core, wire = (self.client, self.to_client) if side == "client" else (self.server, self.to_server)
        target = core.decoder.next_target()
        count = min(len(target), len(wire), limit)
        target[:count] = wire[:count]
        del wire[:count]
        core.decoder.received(count)
        while (message := core.decoder.next_message()) is not None:
            self._note(message)
            core.receive(message)
        return count > 0

    def _note(self, message: Message) -> None:
        if isinstance(message, BufferResponse) and message.header.data_type == DataType.DATA:
            self.served.append(message.header.receiver)

    def check(self) -> None:
        """Nothing negative, every segment in one place, every sink without errors."""
        for reader in self.server._readers.values():
            reader.credit.check()
        places = list(self.gate.pool.free)
        for sink in self.sinks:
            sink.credit.check()
            places += [*sink.credit._held, *sink.credit._free_exclusive, *sink.credit._free_floating]
            assert sink.errors == []
        assert len(places) == len(set(places))

    def settle(self) -> None:
        """Move everything to its end, recycling all the time; then no credit is in flight."""
        for _ in range(100_000):
            moved = [self.write("server"), self.write("client"), self.read("client", 9999), self.read("server", 9999)]
            for sink in self.sinks:
                moved.append(bool(sink.held))
                sink.recycle_all()
            self.check()
            if not any(moved):
                break
        for channel in self.channels:
            reader = self.server._readers.get(channel.receiver)
            if reader is not None and channel.state != "BLOCKED":
                assert reader.credit.credit == channel.credit.announced
                assert channel.credit.held == channel.credit.unannounced == 0


@settings(max_examples=examples(120), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    exclusive=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    floating=st.integers(1, 5),
    steps=st.integers(20, 250),
)
def test_every_buffer_arrives_once_and_in_order(seed: int, exclusive: list[int], floating: int, steps: int) -> None:
    """Data, events, barriers and priority events through random writes, reads, recycles and resumes."""
    rng = random.Random(seed)
    pair = Pair(exclusive, floating)
    sent: list[list[tuple[int, bytes]]] = [[] for _ in exclusive]
    for number in range(steps):
        which = rng.randrange(len(exclusive))
        match rng.randrange(9):
            case 0 | 1:
                kind = rng.choice((0, 0, 0, 0, 0, 1, 2, 3))
                payload = (
                    b"" if kind == 0 and rng.random() < 0.1 else f"{which}:{number}".encode() * rng.randint(1, 300)
                )
                sent[which].append((kind, payload))
                pair.views[which].push(kind, payload)
            case 2 | 3:
                pair.write("server")
            case 4:
                pair.write("client")
            case 5 | 6:
                pair.read("client", rng.choice((1, 10, 5000)))
            case 7:
                pair.read("server", rng.choice((1, 10, 5000)))
            case 8:
                sink = pair.sinks[which]
                if sink.held:
                    sink.credit.recycle(sink.held.pop(rng.randrange(len(sink.held))))
                pair.channels[which].resume()
        pair.check()
    for _ in range(steps + 1):
        pair.settle()
        if all(channel.state != "BLOCKED" for channel in pair.channels):
            break
        for channel in pair.channels:
            channel.resume()
    for view, sink, messages in zip(pair.views, pair.sinks, sent, strict=True):
        assert sink.data == [payload for kind, payload in messages if kind == 0 and payload]
        assert sink.events == [message for message in messages if message[0] != 0]
        assert view.outstanding == 0
    for channel in pair.channels:
        channel.release()
    pair.settle()
    assert all(view.is_released for view in pair.views)
    assert len(pair.gate.pool.free) == floating
    assert len(pair.gate.pool.exclusive_back) == sum(exclusive)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 32), channels=st.integers(2, 6))
def test_channels_that_are_always_ready_are_served_alike(seed: int, channels: int) -> None:
    """While all hold data and credit, the most and the least served never differ by more than one buffer."""
    rng = random.Random(seed)
    pair = Pair([0] * channels, floating=1)
    while pair.write("client"):
        pair.read("server", 9999)
    for channel, view in zip(pair.channels, pair.views, strict=True):
        view.data(*[b"x"] * rng.randint(40, 80))
        pair.server.receive(AddCredit(channel.receiver, rng.randint(40, 80)))
    counts: Counter[int] = Counter()
    for _ in range(40 * channels):
        frame = pair.server.next_frame()
        assert frame is not None
        [message] = served_by(frame)
        counts[message] += 1
        counts.pop(0, None)
        if len(counts) == channels:
            assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == channels


def served_by(frame: OutgoingFrame) -> list[int]:
    """The receiver that a frame's data is for; 0 for a control frame."""
    head = bytes(frame.parts[0])
    is_data = head[4] == FrameType.BUFFER_RESPONSE
    return [int.from_bytes(head[HEADER.size : HEADER.size + 8], "little") if is_data else 0]


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 1 << 32), channels=st.integers(2, 6))
def test_nobody_is_served_twice_while_another_waits(seed: int, channels: int) -> None:
    """Data and credit come at random: between two turns of one channel, each that was ready all the time had one."""
    rng = random.Random(seed)
    pair = Pair([0] * channels, floating=1)
    while pair.write("client"):
        pair.read("server", 9999)
    readers = pair.server._readers
    ready_since: dict[int, int] = {}
    last_turn: Counter[int] = Counter()
    turns = 0
    for step in range(1, 400):
        receiver = rng.choice(list(readers))
        match rng.randrange(4):
            case 0:
                pair.views[receiver - 1].data(b"x")
            case 1:
                pair.server.receive(AddCredit(receiver, rng.randint(1, 3)))
            case _:
                frame = pair.server.next_frame()
                served = served_by(frame)[0] if frame is not None else 0
                if served:
                    turns += 1
                    for other, since in ready_since.items():
                        if other != served and 0 < since <= last_turn[served]:
                            assert last_turn[other] >= last_turn[served], f"{other} waits, {served} had two turns"
                    last_turn[served] = step
        for number, reader in readers.items():
            if not reader.is_ready():
                ready_since.pop(number, None)
            else:
                ready_since.setdefault(number, step)
    assert turns > 20


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 1 << 32), exclusive=st.lists(st.integers(0, 2), min_size=2, max_size=5))
def test_channels_that_end_anywhere_leave_the_others_and_the_pool_intact(seed: int, exclusive: list[int]) -> None:
    """Random releases and failures in mid-flight: the first channel still gets everything, all segments come home."""
    rng = random.Random(seed)
    pair = Pair(exclusive, floating=3)
    expected = []
    for number in range(150):
        which = rng.randrange(len(exclusive))
        payload = f"{which}:{number}".encode() * rng.randint(1, 500)
        if rng.random() < 0.4:
            if which == 0:
                expected.append(payload)
            pair.views[which].push(DataType.DATA, payload)
        for side in ("server", "client"):
            pair.write(side)
            pair.read(side, rng.choice((1, 100, 3000)))
        if which and rng.random() < 0.03:
            pair.channels[which].release()
        elif which and rng.random() < 0.03 and not pair.views[which].is_released:
            pair.views[which].fail(OSError("gone"))
        if rng.random() < 0.5:
            pair.sinks[which].recycle_all()
    for sink in pair.sinks[1:]:
        sink.errors.clear()
    for _ in range(3000):
        for side in ("server", "client"):
            pair.write(side)
            pair.read(side, 9999)
        for sink in pair.sinks:
            sink.recycle_all()
    assert pair.sinks[0].data == expected
    for channel in pair.channels:
        channel.release()
    assert sorted(pair.gate.pool.free) == [0, 1, 2]
    assert len(pair.gate.pool.exclusive_back) == sum(exclusive)
    assert all(view.outstanding == 0 for view in pair.views)


def test_a_slow_reader_does_not_stop_another_channel() -> None:
    """One channel never recycles; the other gets a thousand buffers over the same connection."""
    pair = Pair([2, 2], floating=0)
    slow, fast = pair.views
    slow.data(*[b"slow"] * 1000)
    fast.data(*[b"fast"] * 1000)
    for _ in range(5000):
        for side in ("server", "client"):
            pair.write(side)
            pair.read(side, 9999)
        pair.sinks[1].recycle_all()
    assert len(pair.sinks[1].data) == 1000
    assert len(pair.sinks[0].data) == 2, "exactly its credit"
    assert pair.to_client == b"", "nothing is stuck on the wire"


def test_zero_exclusive_channels_share_one_floating_buffer() -> None:
    """Three channels without exclusive buffers and a pool of one: all get everything, one after the other."""
    pair = Pair([0, 0, 0], floating=1)
    for index, view in enumerate(pair.views):
        view.data(*[bytes([65 + index])] * 20)
    pair.settle()
    assert [sink.data for sink in pair.sinks] == [[b"A"] * 20, [b"B"] * 20, [b"C"] * 20]
