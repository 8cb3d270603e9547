# SPDX-License-Identifier: Apache-2.0
"""Flow control without credit: its ledgers under random interleavings, then both ends of a connection."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from effort import examples
from network_parts import SECRET, Gate, Pool, Provider, QueueView, RecordingSink, partition, run, wait_until
from penstock.connection.handshake import Credentials
from penstock.connection.sockets import TcpTransport
from penstock.errors import ProtocolError, SettingError
from penstock.network.client import ClientSettings, ConnectionManager
from penstock.network.flow import CREDIT, TCP, THROTTLE, FlowControl, flow_control, flow_of_code
from penstock.network.messages import PartitionRequest
from penstock.network.receiver import ChannelRequest, ConnectionCore
from penstock.network.sender import PartitionRequestQueue
from penstock.network.server import DataServer, ServerSettings
from penstock.network.uncredited import OpenSender, PooledBuffers, WaterLevel

CHANNELS, FLOATING = 3, 3


class Buffers(RuleBasedStateMachine):
    """Channels of one gate, each with an exclusive buffer or none, take and give back in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(range(FLOATING))
        self.flags: list[bool] = []
        self.level = WaterLevel(4, 1, self.flags.append)
        own = [[10], [], [20, 21]]
        self.all = {*range(FLOATING), 10, 20, 21}
        self.channels = [PooledBuffers(each, self.pool, self.level) for each in own]
        self.held: list[list[int]] = [[] for _ in own]
        self.waiting: set[int] = set()
        self.released: set[int] = set()

    @rule(which=st.integers(0, CHANNELS - 1))
    def data_comes(self, which: int) -> None:
        """It gets a buffer, or waits until it is called."""
        if which in self.released or which in self.waiting:
            return
        channel = self.channels[which]
        if channel.await_buffer(lambda: self.waiting.discard(which)):
            self.held[which].append(channel.take())
        else:
            self.waiting.add(which)

    @rule(which=st.integers(0, CHANNELS - 1), data=st.data())
    def recycle(self, which: int, data: st.DataObject) -> None:
        """The consumer is done with one of those."""
        if self.held[which]:
            segment = self.held[which].pop(data.draw(st.integers(0, len(self.held[which]) - 1)))
            self.channels[which].recycle(segment)

    @rule(which=st.integers(0, CHANNELS - 1))
    def release(self, which: int) -> None:
        """The channel ends; whoever waits for it is called."""
        self.released.add(which)
        self.channels[which].release()
        assert which not in self.waiting

    @invariant()
    def each_segment_is_in_one_place(self) -> None:
        """Free, kept, held or back where it is from."""
        places = [*self.pool.free, *self.pool.exclusive_back]
        for channel, held in zip(self.channels, self.held, strict=True):
            places += [*channel._free, *held] + ([] if channel._kept is None else [channel._kept])
            assert set(held) == channel._held
        assert sorted(places) == sorted(self.all)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        """One that waits has nothing at hand, and the pool has nothing either."""
        for which in self.waiting:
            assert self.channels[which].free == 0
            assert not self.pool.free

    @invariant()
    def the_flag_follows_the_level(self) -> None:
        """It turns each time, the level is what is held, and nobody that holds nothing has it up for long."""
        assert all(flag is (place % 2 == 0) for place, flag in enumerate(self.flags))
        assert self.level.held == sum(map(len, self.held))
        assert self.level.is_raised or self.level.held < self.level.high


Buffers.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
TestBuffers = Buffers.TestCase


@settings(max_examples=examples(100), deadline=None)
@given(moves=st.lists(st.sampled_from([1, 1, -1, 0]), max_size=200))
def test_a_flag_is_up_from_the_high_mark_to_the_low_one(moves: list[int]) -> None:
    """As a model has it: `0` stands for a gate that gets no buffer."""
    flags: list[bool] = []
    level = WaterLevel(9, 4, flags.append)
    held, is_up, down_at = 0, False, 4
    for move in moves:
        if held + move < 0:
            continue
        held += move
        if move:
            level.move(move)
        else:
            level.fill()
        if not is_up and (held >= 9 or not move):
            is_up, down_at = True, min(4, held // 2)
        elif is_up and move and held < 9 and held <= down_at:
            is_up = False
        assert level.is_raised is is_up
    level.end()
    level.fill()
    level.move(99)
    assert not level.is_raised
    assert flags.count(True) == flags.count(False)


def test_marks_in_the_wrong_order_are_refused() -> None:
    """A low mark is below the high one."""
    with pytest.raises(ValueError, match="low < high"):
        WaterLevel(3, 3, lambda _: None)


def test_policies_are_found_by_name_and_by_number() -> None:
    """And no others."""
    for flow in (CREDIT, TCP, THROTTLE):
        assert flow_control(flow.name) is flow_of_code(flow.code) is flow
    with pytest.raises(SettingError, match="credit, tcp, throttle"):
        flow_control("storm")
    with pytest.raises(ProtocolError, match="3 is not known"):
        flow_of_code(3)


def test_the_marks_are_those_of_flink_and_storm() -> None:
    """A segment and a byte, and two segments; nine tenths of the queue, and four."""
    marks = TCP.marks(1000)
    assert marks is not None
    assert (marks.low, marks.high) == (1001, 2000)
    level = THROTTLE.level(1000, lambda _: None)
    assert (level.high, level.low) == (900, 400)
    assert (CREDIT.marks(1000), THROTTLE.marks(1000)) == (None, None)


def test_an_open_sender_lets_a_view_read_ahead_of_what_it_sends() -> None:
    """As many as the receiver began with, and one for each that was sent."""
    asked: list[int] = []
    sender = OpenSender(3)
    sender.read_ahead(asked.append)
    sender.spend()
    sender.spend()
    assert (asked, sender.credit) == ([3, 1, 1], 1)


class Joined:
    """Both cores, and the bytes between them: nothing is read while the client has stopped that."""

    def __init__(self, flow: FlowControl, channels: int, floating: int) -> None:
        self.provider = Provider()
        self.server = PartitionRequestQueue(self.provider)
        self.client = ConnectionCore("peer", flow=flow)
        self.client.stop_reading = lambda: self._read(is_on=False)
        self.client.go_on_reading = lambda: self._read(is_on=True)
        self.is_reading = True
        self.wire = bytearray()
        self.gates = [Gate(floating, channels=1, exclusive=1, flow=flow) for _ in range(channels)]
        self.views = [self.provider.register(partition(index)) for index in range(channels)]
        self.sinks = [self._open(index) for index in range(channels)]

    def _open(self, index: int) -> RecordingSink:
        sink = self.gates[index].sink(1, hold=True)
        sink.channel = self.client.open_channel(ChannelRequest(partition(index), 0, 0), sink, sink.credit)
        return sink

    def _read(self, *, is_on: bool) -> None:
        assert self.is_reading is not is_on
        self.is_reading = is_on

    def ask(self) -> None:
        """The words of the client arrive at once."""
        while (frame := self.client.next_frame()) is not None:
            for part in frame.parts:
                target = self.server.decoder.next_target()
                target[: len(part)] = part
                self.server.decoder.received(len(part))
            while (message := self.server.decoder.next_message()) is not None:
                self.server.receive(message)

    def send(self) -> bool:
        """One frame goes onto the wire."""
        frame = self.server.next_frame()
        if frame is not None:
            for part in frame.parts:
                self.wire.extend(part)
            if frame.recycle is not None:
                frame.recycle()
        return frame is not None

    def receive(self, limit: int) -> bool:
        """Some bytes come off it, unless nobody reads; those that have come before are looked at again."""
        before = len(self.wire)
        if self.is_reading:
            self._handle()
        if self.is_reading:
            target = self.client.decoder.next_target()
            count = min(len(target), len(self.wire), limit)
            target[:count] = self.wire[:count]
            del self.wire[:count]
            self.client.decoder.received(count)
            self._handle()
        return len(self.wire) < before

    def _handle(self) -> None:
        while (message := self.client.decoder.next_message()) is not None:
            self.client.receive(message)

    def settle(self, recycle: Callable[[], bool] = lambda: False) -> None:
        """Move on until nothing moves any more."""
        moved = True
        while moved:
            self.ask()
            moved = self.send()
            moved |= self.receive(9999)
            moved |= recycle()


@pytest.mark.parametrize("flow", [TCP, THROTTLE], ids=lambda flow: flow.name)
def test_a_channel_without_buffers_stops_all_others(flow: FlowControl) -> None:
    """And its first free buffer lets them go on; under credit, one line above in the table, it does not."""
    pair = Joined(flow, 2, floating=2)
    for number in range(20):
        pair.views[0].data(b"stuck%d" % number)
        pair.views[1].data(b"well%d" % number)
    pair.settle(lambda: bool(pair.sinks[1].held) and pair.sinks[1].recycle_all() is None)
    assert not pair.is_reading
    assert len(pair.sinks[0].data) == 3
    assert len(pair.sinks[1].data) == 3
    pair.sinks[0].recycle_all()
    assert pair.is_reading
    pair.settle(lambda: bool(pair.sinks[1].held) and pair.sinks[1].recycle_all() is None)
    assert len(pair.sinks[0].data) == 6
    assert len(pair.sinks[1].data) == 6
    assert pair.gates[0].flags == ([True, False, True] if flow is THROTTLE else [])


def test_with_credit_the_others_go_on() -> None:
    """The same channels and buffers: the stuck one has three, the other all of its own."""
    pair = Joined(CREDIT, 2, floating=2)
    for number in range(20):
        pair.views[0].data(b"stuck%d" % number)
        pair.views[1].data(b"well%d" % number)
    pair.settle(lambda: bool(pair.sinks[1].held) and pair.sinks[1].recycle_all() is None)
    assert (len(pair.sinks[0].data), len(pair.sinks[1].data)) == (3, 20)


def test_the_end_of_the_stuck_channel_lets_the_others_go_on() -> None:
    """Rows that have come for it are skipped, and every buffer is back."""
    pair = Joined(TCP, 2, floating=1)
    for number in range(9):
        pair.views[0].data(b"stuck%d" % number)
        pair.views[1].data(b"well%d" % number)
    pair.settle(lambda: bool(pair.sinks[1].held) and pair.sinks[1].recycle_all() is None)
    assert not pair.is_reading
    stuck = pair.sinks[0].channel
    assert stuck is not None
    stuck.release()
    pair.sinks[0].recycle_all()
    pair.settle(lambda: bool(pair.sinks[1].held) and pair.sinks[1].recycle_all() is None)
    assert len(pair.sinks[1].data) == 9
    assert pair.views[0].is_released
    assert (pair.gates[0].pool.free, pair.gates[0].pool.lent) == ([0], set())


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 1 << 32), channels=st.integers(1, 4), steps=st.integers(20, 200))
@pytest.mark.parametrize("flow", [TCP, THROTTLE], ids=lambda flow: flow.name)
def test_everything_arrives_once_and_in_order(flow: FlowControl, seed: int, channels: int, steps: int) -> None:
    """Rows of any size, empty ones and events, through bytes that are cut at random and consumers that dawdle."""
    rng = random.Random(seed)
    pair = Joined(flow, channels, floating=rng.randint(1, 3))
    sent: list[list[bytes]] = [[] for _ in range(channels)]
    for number in range(steps):
        which = rng.randrange(channels)
        match rng.randrange(5):
            case 0 | 1:
                payload = b"" if rng.random() < 0.1 else f"{which}:{number};".encode() * rng.randint(1, 900)
                pair.views[which].data(payload)
                sent[which] += [payload] if payload else []
            case 2:
                pair.ask()
                pair.send()
            case 3:
                pair.receive(rng.choice((1, 10, 5000)))
            case 4:
                pair.sinks[which].recycle_all()
    for view in pair.views:
        view.event(b"end")

    def recycle() -> bool:
        held = [sink for sink in pair.sinks if sink.held]
        for sink in held:
            sink.recycle_all()
        return bool(held)

    pair.settle(recycle)
    assert [sink.data for sink in pair.sinks] == sent
    assert all(len(sink.events) == 1 and not sink.errors for sink in pair.sinks)
    assert all(gate.level.held == 0 and not gate.level.is_raised for gate in pair.gates)


def test_one_connection_has_one_flow_control() -> None:
    """A request of another one breaks the protocol."""
    pair = Joined(TCP, 1, floating=1)
    pair.ask()
    with pytest.raises(ProtocolError, match="on a connection of tcp"):
        pair.server.receive(PartitionRequest(9, partition(), 0, 0, 1))


def test_over_sockets_a_stuck_channel_closes_the_window_and_is_no_failure() -> None:
    """Neither pings nor the watch for peers that take nothing give it up, and channels with credit are elsewhere."""

    async def main() -> None:
        provider, gate = Provider(), Gate(channels=8)
        transport = TcpTransport(8 << 10)
        serving = ServerSettings(segment_size=32 << 10, stall_timeout=0.02)
        server = DataServer(transport, provider, Credentials("producer", SECRET), serving)
        manager = ConnectionManager(
            transport, Credentials("consumer", SECRET), ClientSettings(keepalive_interval=0.01)
        )
        address = await server.start("tcp://127.0.0.1:0")
        views = [provider.register(partition(index), QueueView()) for index in range(2)]
        plain, windowed = gate.sink(), Gate(1, channels=1, flow=TCP).sink(1, hold=True)
        windowed.channel = await manager.request_partition(
            address, ChannelRequest(partition(0), 0, 0), windowed, windowed.credit, TCP
        )
        plain.channel = await manager.request_partition(
            address, ChannelRequest(partition(1), 0, 0), plain, plain.credit
        )
        for _ in range(60):
            views[0].data(bytes(32 << 10))
            views[1].data(bytes(32 << 10))
        await wait_until(lambda: len(plain.data) == 60)
        (stopped,) = [each for each in manager._connections.values() if not each.frames.is_reading]
        beats = {stopped._timer}
        await wait_until(lambda: beats.add(stopped._timer) is None and len(beats) > 9)
        assert (len(windowed.data), windowed.errors) == (2, [])
        assert server.statistics().bytes_pending > 0
        windowed.hold = False
        windowed.recycle_all()
        await wait_until(lambda: len(windowed.data) == 60)
        assert (manager.connections_opened, windowed.errors) == (2, [])
        await manager.close()
        server.close()

    run(main)
