# SPDX-License-Identifier: Apache-2.0
"""The two cores of a connection, each on its own: what goes in, what comes out."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from network_parts import SEGMENT, Gate, Provider, QueueView, RecordingSink, partition
from penstock.buffer.data_types import DataType
from penstock.connection.frames import OutgoingFrame
from penstock.errors import (
    EnvironmentLostError,
    IllegalTransitionError,
    IncompleteDataError,
    PartitionLostError,
    PartitionNotProducedError,
    ProducerFailedError,
    ProtocolError,
    StaleError,
    TaskCancelledError,
)
from penstock.lifecycle.table import Lifecycle, Table, as_markdown
from penstock.network.decoder import FrameDecoder
from penstock.network.frames import BUFFER_HEAD, CLIENT_TYPES, SERVER_TYPES, encode, payload_checksum
from penstock.network.lifecycle import CHANNEL_TABLE, READER_TABLE, ChannelEvent, ChannelState
from penstock.network.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferHeader,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    ErrorCode,
    ErrorResponse,
    Message,
    PartitionRequest,
    Ping,
    Pong,
    ResumeConsumption,
)
from penstock.network.receiver import ChannelRequest, ConnectionCore, RemoteInputChannel
from penstock.network.sender import PartitionRequestQueue


def messages_of(frames: list[OutgoingFrame]) -> list[Message]:
    """The messages in the frames; payloads as bytes. The transport has then taken them."""
    decoder = FrameDecoder(CLIENT_TYPES | SERVER_TYPES, lambda _, header: memoryview(bytearray(header.length)))
    messages: list[Message] = []
    for frame in frames:
        stream = b"".join(frame.parts)
        assert len(stream) == frame.size
        while stream:
            target = decoder.next_target()
            count = min(len(target), len(stream))
            target[:count] = stream[:count]
            stream = stream[count:]
            decoder.received(count)
            while (message := decoder.next_message()) is not None:
                messages.append(
                    BufferResponse(message.header, bytes(message.payload or b""))
                    if isinstance(message, BufferResponse)
                    else message
                )
        if frame.recycle is not None:
            frame.recycle()
    return messages


def drain(core: PartitionRequestQueue | ConnectionCore) -> list[Message]:
    """All the core would send now."""
    frames = []
    while (frame := core.next_frame()) is not None:
        frames.append(frame)
    return messages_of(frames)


def payloads(messages: list[Message]) -> list[bytes]:
    """The payloads among the messages."""
    return [bytes(message.payload or b"") for message in messages if isinstance(message, BufferResponse)]


class Serving:
    """A sending core with one partition of two subpartitions, and a count of wakes."""

    def __init__(self) -> None:
        self.provider = Provider()
        self.wakes = 0
        self.core = PartitionRequestQueue(self.provider, self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def open(self, receiver: int, credit: int, index: int = 0) -> QueueView:
        """Open one channel."""
        view = self.provider.register(partition(index))
        self.core.receive(PartitionRequest(receiver, partition(index), 0, 0, credit))
        return view


class TestSender:
    """PartitionRequestQueue."""

    def test_data_needs_credit_events_do_not(self) -> None:
        """With one credit, one buffer goes out; an event after it goes too; the next buffer waits for credit."""
        serving = Serving()
        view = serving.open(1, credit=1)
        view.data(b"a").event(b"E").data(b"b")
        sent = drain(serving.core)
        assert payloads(sent) == [b"a", b"E"]
        header = sent[0].header  # type: ignore[union-attr]
        assert (header.sequence, header.backlog, header.data_type) == (0, 1, DataType.DATA)
        assert header.checksum == payload_checksum(b"a")
        serving.core.receive(AddCredit(1, 1))
        assert payloads(drain(serving.core)) == [b"b"]
        assert view.outstanding == 0

    def test_wakes_only_when_there_is_something(self) -> None:
        """Data without credit does not wake; credit for it does, once."""
        serving = Serving()
        view = serving.open(1, credit=0)
        view.event(b"first")
        drain(serving.core)
        wakes = serving.wakes
        serving.core.receive(PartitionRequest(2, partition(0), 0, 0, 1))
        assert serving.wakes == wakes
        assert serving.core.next_frame() is None

    def test_round_robin_one_buffer_a_turn(self) -> None:
        """Three readers with different amounts of data take turns."""
        serving = Serving()
        views = [serving.open(receiver, 10, index=receiver) for receiver in range(3)]
        for count, view in zip((4, 1, 2), views, strict=True):
            view.data(*[bytes([65 + views.index(view)])] * count)
        assert payloads(drain(serving.core)) == [b"A", b"B", b"C", b"A", b"C", b"A", b"A"]

    def test_many_readers_notified_while_none_has_data(self) -> None:
        """Empty notifications send nothing and queue nobody."""
        serving = Serving()
        views = [serving.open(receiver, 1, index=receiver) for receiver in range(50)]
        for view in views:
            view.listener()
            view.listener()
        assert drain(serving.core) == []
        views[7].data(b"x")
        assert payloads(drain(serving.core)) == [b"x"]

    def test_backlog_is_announced_only_without_exclusive_buffers(self) -> None:
        """Initial credit 0 announces the newest backlog, once; initial credit above 0 never announces."""
        serving = Serving()
        some = serving.open(1, credit=1, index=0).data(b"a", b"b")
        drain(serving.core)
        assert drain(serving.core) == []
        some.data(b"c")
        assert drain(serving.core) == []
        none = serving.open(2, credit=0, index=1).data(b"x")
        none.listener()
        none.data(b"y")
        assert drain(serving.core) == [BacklogAnnouncement(2, 2)]
        serving.core.receive(AddCredit(2, 1))
        assert payloads(drain(serving.core)) == [b"x"]
        none.listener()
        assert drain(serving.core) == [], "a backlog of 1 went with the buffer"

    def test_an_empty_buffer_is_a_buffer(self) -> None:
        """A zero-length data buffer advances the sequence and costs the credit that its backlog brought."""
        serving = Serving()
        view = serving.open(1, credit=2).data(b"", b"full", b"no credit left")
        sent = drain(serving.core)
        assert payloads(sent) == [b"", b"full"]
        assert [message.header.sequence for message in sent] == [0, 1]  # type: ignore[union-attr]
        assert view.recycled == 2

    def test_an_aligned_barrier_blocks_until_resumed(self) -> None:
        """Nothing follows the barrier, events included, until RESUME_CONSUMPTION; then all does."""
        serving = Serving()
        view = serving.open(1, credit=5).data(b"a").event(b"B", DataType.ALIGNED_BARRIER).event(b"E").data(b"b")
        sent = drain(serving.core)
        assert payloads(sent) == [b"a", b"B"]
        assert sent[1].header.backlog == 0  # type: ignore[union-attr]
        view.listener()
        serving.core.receive(AddCredit(1, 1))
        assert drain(serving.core) == []
        serving.core.receive(ResumeConsumption(1))
        assert payloads(drain(serving.core)) == [b"E", b"b"]
        assert view.resumed == 1

    def test_resume_resets_credit_without_exclusive_buffers(self) -> None:
        """The receiver took its floating buffers back: data after the barrier is announced anew."""
        serving = Serving()
        view = serving.open(1, credit=0).data(b"a")
        drain(serving.core)
        serving.core.receive(AddCredit(1, 3))
        view.event(b"B", DataType.ALIGNED_BARRIER).data(b"b")
        drain(serving.core)
        serving.core.receive(ResumeConsumption(1))
        assert drain(serving.core) == [BacklogAnnouncement(1, 1)]

    def test_resume_of_a_channel_that_is_not_blocked_fails_that_channel_only(self) -> None:
        """The reader ends with a protocol error, its view is released, another reader goes on."""
        serving = Serving()
        wrong, other = serving.open(1, 1, index=1), serving.open(2, 1, index=2)
        serving.core.receive(ResumeConsumption(1))
        [answer] = drain(serving.core)
        assert isinstance(answer, ErrorResponse)
        assert (answer.receiver, answer.code) == (1, ErrorCode.PROTOCOL)
        assert wrong.is_released
        other.data(b"x")
        assert payloads(drain(serving.core)) == [b"x"]

    def test_cancel_releases_the_view_once(self) -> None:
        """Cancel of a queued reader frees it; a second cancel and late messages have no effect."""
        serving = Serving()
        view = serving.open(1, credit=5).data(b"a", b"b")
        for message in (CancelPartitionRequest(1), CancelPartitionRequest(1), AddCredit(1, 1), ResumeConsumption(1)):
            serving.core.receive(message)
        assert view.is_released
        assert drain(serving.core) == []
        assert serving.core.readers == 0

    def test_a_partition_that_comes_later_is_served_when_it_comes(self) -> None:
        """Not yet produced: the reader waits; registration opens the view with the credit that came meanwhile."""
        serving = Serving()
        serving.core.receive(PartitionRequest(1, partition(), 0, 0, 1))
        serving.core.receive(AddCredit(1, 1))
        assert serving.core.is_waiting(1)
        serving.provider.register(partition(), QueueView().data(b"a", b"b", b"c"))
        assert not serving.core.is_waiting(1)
        assert payloads(drain(serving.core)) == [b"a", b"b"]

    def test_deadline_answers_not_produced_and_forgets_the_listener(self) -> None:
        """After `expire` the receiver is told, and a late registration disturbs nobody."""
        serving = Serving()
        serving.core.receive(PartitionRequest(1, partition(), 0, 0, 1))
        [listener] = serving.provider.waiting[partition()]
        serving.core.expire(1)
        serving.core.expire(1)
        [answer] = drain(serving.core)
        assert isinstance(answer, ErrorResponse)
        assert answer.code is ErrorCode.NOT_PRODUCED
        assert str(partition()) in answer.text
        listener()
        view = serving.provider.register(partition(), QueueView().data(b"a"))
        assert not view.is_released
        assert drain(serving.core) == []

    def test_deadline_of_a_partition_that_came_has_no_effect(self) -> None:
        """A late timer of a reader that is reading does nothing."""
        serving = Serving()
        view = serving.open(1, credit=1)
        serving.core.expire(1)
        assert drain(serving.core) == []
        assert not view.is_released

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (StaleError("attempt 7 was replaced"), ErrorCode.STALE),
            (PartitionLostError("file gone"), ErrorCode.LOST),
            (IncompleteDataError("a checksum does not match"), ErrorCode.INCOMPLETE),
            (OSError("input/output error"), ErrorCode.LOST),
            (ValueError("a bug"), ErrorCode.INTERNAL),
        ],
    )
    def test_a_request_that_fails_is_answered_with_its_own_code(self, error: Exception, code: ErrorCode) -> None:
        """The provider's error reaches the receiver typed; the connection goes on."""
        serving = Serving()
        serving.provider.errors[partition()] = error
        serving.core.receive(PartitionRequest(1, partition(), 0, 0, 1))
        assert drain(serving.core) == [ErrorResponse(1, code, str(error))]

    def test_a_view_hears_of_all_credit(self) -> None:
        """The credit at the beginning, and all that is granted later, is told to the view, which may read ahead."""
        serving = Serving()
        view = serving.open(1, credit=3)
        assert view.granted == 3
        serving.core.receive(AddCredit(1, 4))
        assert view.granted == 7

    def test_a_view_that_fails_ends_its_reader_only(self) -> None:
        """A producer's failure is sent to its reader, with the text; others still get their data."""
        serving = Serving()
        failing, other = serving.open(1, 5, index=1), serving.open(2, 5, index=2)
        other.data(b"x")
        failing.data(b"a")
        failing.fail(ProducerFailedError("division by zero on host-3"))
        sent = drain(serving.core)
        assert ErrorResponse(1, ErrorCode.PRODUCER_FAILED, "division by zero on host-3") in sent
        assert payloads(sent) == [b"x"]
        assert failing.is_released

    def test_a_view_that_raises_in_poll_ends_its_reader_only(self) -> None:
        """An unreadable file is that reader's error."""
        serving = Serving()
        broken, other = serving.open(1, 5, index=1), serving.open(2, 5, index=2)

        def poll() -> None:
            raise OSError("bad sector")

        broken.poll = poll  # type: ignore[method-assign, assignment]
        broken.data(b"a")
        other.data(b"x")
        sent = drain(serving.core)
        assert sent[0] == ErrorResponse(1, ErrorCode.LOST, "bad sector")
        assert payloads(sent) == [b"x"]

    def test_an_event_that_does_not_fit_ends_its_reader_and_recycles(self) -> None:
        """A local mistake (an event of a megabyte) is reported, not sent."""
        serving = Serving()
        serving.open(1, 5).event(bytes(1 << 20))
        [answer] = drain(serving.core)
        assert isinstance(answer, ErrorResponse)
        assert answer.code is ErrorCode.INTERNAL
        assert serving.core.readers == 0

    def test_pings_are_answered_once_with_the_newest_token(self) -> None:
        """A flood of pings costs one pong."""
        serving = Serving()
        for token in range(1000):
            serving.core.receive(Ping(token))
        assert drain(serving.core) == [Pong(999)]

    def test_requests_that_break_the_protocol_end_the_connection(self) -> None:
        """The same receiver twice, or a server's message from a client, is nobody's single fault."""
        serving = Serving()
        serving.open(1, 1)
        with pytest.raises(ProtocolError, match="twice"):
            serving.core.receive(PartitionRequest(1, partition(), 0, 0, 1))
        with pytest.raises(ProtocolError, match="Pong"):
            serving.core.receive(Pong(1))

    def test_a_peer_that_asks_and_never_reads_is_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answers that nobody reads count like readers: the queue of errors is bounded."""
        monkeypatch.setattr("penstock.network.sender.MAX_READERS", 10)
        serving = Serving()
        serving.provider.errors[partition()] = StaleError("old")
        for receiver in range(10):
            serving.core.receive(PartitionRequest(receiver, partition(), 0, 0, 1))
        with pytest.raises(ProtocolError, match="more than 10"):
            serving.core.receive(PartitionRequest(10, partition(), 0, 0, 1))

    def test_connection_loss_releases_every_view(self) -> None:
        """All views are released, one of them raising, waiting requests included, and nothing is sent any more."""
        serving = Serving()
        views = [serving.open(receiver, 1, index=receiver) for receiver in range(3)]
        serving.core.receive(PartitionRequest(9, partition(9), 0, 0, 1))

        def release() -> None:
            raise RuntimeError("a bug")

        views[0].release = release  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup, match="views raised"):
            serving.core.connection_lost()
        assert views[1].is_released
        assert views[2].is_released
        assert serving.core.readers == 0
        views[1].data(b"late")
        serving.provider.register(partition(9), QueueView().data(b"late"))
        assert drain(serving.core) == []

    def test_a_view_that_calls_back_while_it_is_made(self) -> None:
        """The listener called within `request_view` neither recurses nor is it lost."""
        serving = Serving()
        original = serving.provider.request_view

        def eager(*arguments: object) -> QueueView:
            arguments[3]()  # type: ignore[operator]
            return original(*arguments)  # type: ignore[arg-type]

        serving.provider.request_view = eager  # type: ignore[method-assign, assignment]
        serving.provider.register(partition(), QueueView().data(b"a"))
        serving.core.receive(PartitionRequest(1, partition(), 0, 0, 1))
        assert payloads(drain(serving.core)) == [b"a"]

    def test_sequence_numbers_wrap(self) -> None:
        """After 2**32 messages the sequence starts from 0."""
        serving = Serving()
        view = serving.open(1, 5)
        serving.core._readers[1].sequence = (1 << 32) - 1
        view.event(b"last").event(b"first")
        sent = drain(serving.core)
        assert [message.header.sequence for message in sent] == [(1 << 32) - 1, 0]  # type: ignore[union-attr]


class Receiving:
    """A client core, with what it would send and with frames put in by hand."""

    def __init__(self) -> None:
        self.core = ConnectionCore("tcp://peer:1")
        self.gate = Gate()

    def open(
        self, exclusive: int = 2, *, hold: bool = False, last: int = 0
    ) -> tuple[RemoteInputChannel, RecordingSink]:
        """Open one channel."""
        sink = self.gate.sink(exclusive, hold=hold)
        channel = self.core.open_channel(ChannelRequest(partition(), 0, last), sink, sink.credit)
        sink.channel = channel
        assert drain(self.core) == [PartitionRequest(channel.receiver, partition(), 0, last, exclusive)]
        return channel, sink

    def feed(self, stream: bytes) -> None:
        """Bytes from the wire, through the decoder."""
        while stream:
            target = self.core.decoder.next_target()
            count = min(len(target), len(stream))
            target[:count] = stream[:count]
            stream = stream[count:]
            self.core.decoder.received(count)
            while (message := self.core.decoder.next_message()) is not None:
                self.core.receive(message)


def buffer(
    receiver: int, sequence: int, payload: bytes = b"data", kind: int = DataType.DATA, backlog: int = 0, sub: int = 0
) -> bytes:
    """A BUFFER_RESPONSE in bytes."""
    header = BufferHeader(receiver, sub, sequence, backlog, kind, payload_checksum(payload), len(payload))
    return encode(BufferResponse(header, payload))


class TestReceiver:
    """RemoteInputChannel and ConnectionCore."""

    def test_data_and_events_arrive_in_order(self) -> None:
        """Payloads lie in the channel's segments; events come inline; the credit of recycled buffers goes back."""
        receiving = Receiving()
        channel, sink = receiving.open()
        receiving.feed(buffer(1, 0, b"one") + buffer(1, 1, b"E", DataType.EVENT) + buffer(1, 2, b"two"))
        assert sink.data == [b"one", b"two"]
        assert sink.events == [(DataType.EVENT, b"E")]
        assert channel.expected_sequence == 3
        assert drain(receiving.core) == [AddCredit(1, 2)]

    def test_credit_announcements_are_batched(self) -> None:
        """However many buffers are recycled before the frame is written: one ADD_CREDIT with the sum."""
        receiving = Receiving()
        receiving.gate.pool.free.clear()
        _, sink = receiving.open(exclusive=5, hold=True)
        receiving.feed(b"".join(buffer(1, sequence) for sequence in range(5)))
        assert drain(receiving.core) == []
        sink.recycle_all()
        assert drain(receiving.core) == [AddCredit(1, 5)]

    def test_backlog_brings_floating_buffers(self) -> None:
        """Backlog 3 on a message asks the gate's pool; so does an announcement."""
        receiving = Receiving()
        _, sink = receiving.open(exclusive=1)
        receiving.feed(buffer(1, 0, b"x", DataType.EVENT, backlog=3))
        assert drain(receiving.core) == [AddCredit(1, 3)]
        assert sink.credit.free == 4
        _, none = receiving.open(exclusive=0)
        receiving.feed(encode(BacklogAnnouncement(2, 1)))
        assert drain(receiving.core) == [AddCredit(2, 1)]
        assert none.credit.free == 1

    def test_a_sequence_gap_fails_that_channel_only(self) -> None:
        """The gap's payload is skipped, the sink told once, the request cancelled; the other channel goes on."""
        receiving = Receiving()
        channel, sink = receiving.open()
        _, other = receiving.open()
        receiving.feed(buffer(1, 1) + buffer(1, 0) + buffer(2, 0, b"fine"))
        [error] = sink.errors
        assert isinstance(error, ProtocolError)
        assert "sequence 1 arrived where 0" in str(error)
        assert channel.state == "FAILED"
        assert sink.data == []
        assert other.data == [b"fine"]
        assert drain(receiving.core)[0] == CancelPartitionRequest(1)

    def test_a_corrupt_payload_fails_that_channel_and_returns_its_segment(self) -> None:
        """One flipped bit in data or event is noticed; the segment is not lost; the other channel goes on."""
        receiving = Receiving()
        _, first = receiving.open()
        _, second = receiving.open()
        _, other = receiving.open()
        damaged = bytearray(buffer(1, 0, b"payload") + buffer(2, 0, b"payload", DataType.EVENT))
        damaged[BUFFER_HEAD + 3] ^= 1
        damaged[-1] ^= 1
        receiving.feed(bytes(damaged) + buffer(3, 0, b"fine"))
        for sink in (first, second):
            [error] = sink.errors
            assert "checksum" in str(error)
            assert sink.credit.held == 0
        assert first.data == []
        assert second.events == []
        assert other.data == [b"fine"]

    def test_data_without_credit_fails_the_channel(self) -> None:
        """A sender that sends more than it was granted is caught before a byte is written anywhere."""
        receiving = Receiving()
        _, sink = receiving.open(exclusive=1, hold=True)
        receiving.feed(buffer(1, 0) + buffer(1, 1))
        [error] = sink.errors
        assert "without credit" in str(error)
        assert sink.data == [b"data"]

    def test_a_payload_larger_than_the_segment_fails_the_channel(self) -> None:
        """The payload is skipped, nothing is overwritten, the segment goes back."""
        receiving = Receiving()
        _, sink = receiving.open()
        _, other = receiving.open()
        receiving.feed(buffer(1, 0, b"x" * (SEGMENT + 1)) + buffer(2, 0, b"fine"))
        assert "segment" in str(sink.errors[0])
        assert sink.credit.held == 0
        assert not any(receiving.gate.memory[: 4 * SEGMENT])
        assert other.data == [b"fine"]

    def test_sinks_that_misbehave_fail_their_channel(self) -> None:
        """No buffer, a buffer of somebody else, an exception: the connection survives each."""
        receiving = Receiving()
        channels = [receiving.open() for _ in range(4)]
        sinks = [sink for _, sink in channels]
        sinks[0].take_buffer = lambda length: None  # type: ignore[method-assign]
        sinks[1].take_buffer = lambda length: (0, receiving.gate.memory)  # type: ignore[method-assign]
        sinks[2].on_buffer = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        receiving.feed(b"".join(buffer(receiver, 0) for receiver in (1, 2, 3, 4)))
        assert "no buffer" in str(sinks[0].errors[0])
        assert "does not come from" in str(sinks[1].errors[0])
        assert isinstance(sinks[2].errors[0], ZeroDivisionError)
        assert sinks[3].data == [b"data"]

    def test_a_pool_that_ends_fails_its_channels_only(self) -> None:
        """A destroyed pool raises when asked for floating buffers: that channel gets the error."""
        receiving = Receiving()
        _, sink = receiving.open()

        def destroyed() -> int | None:
            raise TaskCancelledError("the pool is destroyed")

        receiving.gate.pool.request_floating = destroyed  # type: ignore[method-assign]
        receiving.feed(buffer(1, 0, backlog=4))
        assert isinstance(sink.errors[0], TaskCancelledError)

    def test_a_subpartition_that_was_not_requested_is_refused(self) -> None:
        """A range of subpartitions is served on one channel, others are a fault; the channel says which came last."""
        receiving = Receiving()
        channel, sink = receiving.open(last=2)
        receiving.feed(buffer(1, 0, sub=2))
        assert channel.subpartition == 2
        receiving.feed(buffer(1, 1, sub=3))
        assert "subpartition 3 was not requested" in str(sink.errors[0])

    def test_empty_buffers_take_no_segment(self) -> None:
        """They count in the sequence, bring their backlog, and their credit is granted anew or given up at once."""
        receiving = Receiving()
        channel, sink = receiving.open()
        receiving.feed(buffer(1, 0, b"", backlog=1))
        assert (channel.expected_sequence, sink.data, sink.credit.free, sink.credit.announced) == (1, [], 3, 1)
        assert drain(receiving.core) == [AddCredit(1, 2)]
        receiving.feed(buffer(1, 1, b""))
        assert (sink.credit.free, sink.credit.announced, len(receiving.gate.pool.free)) == (2, 2, 4)
        _, spent = receiving.open(exclusive=0)
        receiving.feed(buffer(2, 0, b""))
        assert "without credit" in str(spent.errors[0])

    def test_barrier_blocks_and_resume_goes_out_once(self) -> None:
        """After a barrier any message is a fault of the sender; resume is sent once and opens the channel again."""
        receiving = Receiving()
        channel, sink = receiving.open()
        channel.resume()
        assert drain(receiving.core) == []
        receiving.feed(buffer(1, 0, b"B", DataType.ALIGNED_BARRIER))
        assert channel.state == "BLOCKED"
        channel.resume()
        channel.resume()
        assert drain(receiving.core) == [ResumeConsumption(1)]
        receiving.feed(buffer(1, 1, b"B", DataType.ALIGNED_BARRIER) + buffer(1, 2))
        assert "blocked" in str(sink.errors[0])

    def test_a_barrier_with_a_backlog_is_refused(self) -> None:
        """A blocked sender must not ask for buffers."""
        receiving = Receiving()
        _, sink = receiving.open()
        receiving.feed(buffer(1, 0, b"B", DataType.ALIGNED_BARRIER, backlog=1))
        assert "backlog of 1" in str(sink.errors[0])

    def test_barrier_without_exclusive_buffers_gives_floating_ones_back(self) -> None:
        """They are free for others while the channel waits, and pending credit is not announced."""
        receiving = Receiving()
        channel, sink = receiving.open(exclusive=0)
        receiving.feed(encode(BacklogAnnouncement(1, 3)) + buffer(1, 0, b"B", DataType.ALIGNED_BARRIER))
        assert len(receiving.gate.pool.free) == 4
        assert drain(receiving.core) == []
        channel.resume()
        receiving.feed(encode(BacklogAnnouncement(1, 2)))
        assert drain(receiving.core) == [ResumeConsumption(1), AddCredit(1, 2)]
        assert sink.credit.free == 2

    def test_release_cancels_once_and_skips_what_is_in_flight(self) -> None:
        """Data for the released channel is skipped, its credit never announced, its buffers come home."""
        receiving = Receiving()
        channel, sink = receiving.open(hold=True)
        receiving.feed(buffer(1, 0))
        sink.recycle_all()
        channel.release()
        channel.release()
        channel.resume()
        assert drain(receiving.core) == [CancelPartitionRequest(1)]
        receiving.feed(buffer(1, 1) + encode(ErrorResponse(1, ErrorCode.LOST, "late")) + buffer(1, 2))
        assert sink.errors == []
        assert sink.data == [b"data"]
        assert sorted(receiving.gate.pool.exclusive_back) == [4, 5]
        assert receiving.core.channels == 0

    def test_release_in_mid_payload_frees_the_segment_at_once(self) -> None:
        """No byte is written to the segment after it went back; the stream goes on after the payload."""
        receiving = Receiving()
        channel, sink = receiving.open()
        _, other = receiving.open()
        stream = buffer(1, 0, b"x" * 20_000)
        receiving.feed(stream[:10_000])
        assert sink.credit.held == 1
        channel.release()
        assert sorted(receiving.gate.pool.exclusive_back) == [4, 5]
        before = bytes(receiving.gate.memory)
        receiving.feed(stream[10_000:] + buffer(2, 0, b"fine"))
        assert bytes(receiving.gate.memory[: 6 * SEGMENT]) == before[: 6 * SEGMENT]
        assert other.data == [b"fine"]

    def test_errors_of_the_server_arrive_typed_and_once(self) -> None:
        """The named receiver's sink gets the typed error; the others nothing; its buffers go home."""
        receiving = Receiving()
        channel, sink = receiving.open()
        _, other = receiving.open()
        answer = encode(ErrorResponse(1, ErrorCode.NOT_PRODUCED, "partition x"))
        receiving.feed(answer + answer)
        [error] = sink.errors
        assert isinstance(error, PartitionNotProducedError)
        assert "tcp://peer:1" in str(error)
        assert other.errors == []
        assert len(receiving.gate.pool.exclusive_back) == 2
        channel.release()

    def test_a_connection_error_reaches_each_channel_exactly_once(self) -> None:
        """Each gets an error of its own; a failed one nothing more; a sink that raises does not stop the news."""
        receiving = Receiving()
        sinks = [receiving.open()[1] for _ in range(4)]
        receiving.feed(encode(ErrorResponse(1, ErrorCode.LOST, "gone")))
        original = sinks[1].on_error

        def raising(error: BaseException) -> None:
            original(error)
            raise RuntimeError("a bug in a sink")

        sinks[1].on_error = raising  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup, match="sinks raised"):
            receiving.core.connection_lost(EnvironmentLostError("reset"))
        receiving.core.connection_lost(EnvironmentLostError("reset again"))
        assert [len(sink.errors) for sink in sinks] == [1, 1, 1, 1]
        assert all(isinstance(sink.errors[0], EnvironmentLostError) for sink in sinks[1:])
        assert sinks[2].errors[0] is not sinks[3].errors[0]
        assert str(pickle.loads(pickle.dumps(sinks[2].errors[0]))) == "reset"  # noqa: S301
        assert drain(receiving.core) == []
        with pytest.raises(EnvironmentLostError, match="is closed"):
            receiving.core.open_channel(ChannelRequest(partition(), 0, 0), sinks[0], sinks[0].credit)

    def test_an_error_without_receiver_ends_the_connection(self) -> None:
        """The core raises what the server said, for the shell to close with."""
        receiving = Receiving()
        with pytest.raises(ProtocolError, match="what is that"):
            receiving.feed(encode(ErrorResponse(None, ErrorCode.PROTOCOL, "what is that")))

    def test_loss_in_mid_payload_returns_the_segment(self) -> None:
        """The half-filled segment is not delivered and not lost."""
        receiving = Receiving()
        _, sink = receiving.open()
        receiving.feed(buffer(1, 0, b"x" * 20_000)[:10_000])
        receiving.core.connection_lost()
        assert sink.credit.held == 0
        assert sink.data == []
        assert len(sink.errors) == 1
        assert sorted(receiving.gate.pool.exclusive_back) == [4, 5]

    def test_pings(self) -> None:
        """One goes out; the answer to it is noted."""
        receiving = Receiving()
        receiving.open()
        receiving.core.ping(3)
        assert drain(receiving.core) == [Ping(3)]
        receiving.feed(encode(Pong(3)))
        assert receiving.core.last_pong == 3

    def test_farewells(self) -> None:
        """A client that closes says so; a server tells a peer that broke the protocol why."""
        farewell = ConnectionCore("p").farewell(None)
        assert farewell is not None
        assert messages_of([farewell]) == [CloseRequest()]
        assert ConnectionCore("p").farewell(ProtocolError("x")) is None
        queue = PartitionRequestQueue(Provider())
        assert queue.farewell(None) is None
        why = queue.farewell(ProtocolError("nonsense"))
        assert why is not None
        assert messages_of([why]) == [ErrorResponse(None, ErrorCode.PROTOCOL, "nonsense")]
        queue.receive(CloseRequest())
        assert queue.is_close_requested


class TestLifecycle:
    """The tables."""

    def test_an_illegal_event_raises_with_the_story(self) -> None:
        """The error names object, state, event and the last events."""
        life = Lifecycle("channel 5", CHANNEL_TABLE, ChannelState.OPEN)
        life.move(ChannelEvent.BARRIER)
        life.move(ChannelEvent.FAIL)
        with pytest.raises(IllegalTransitionError, match=r"channel 5: 'resumed' in state FAILED.*received, failed"):
            life.move(ChannelEvent.RESUME)
        assert str(life) == "channel 5 FAILED (barrier received, failed)"

    @pytest.mark.parametrize("table", [CHANNEL_TABLE, READER_TABLE])
    def test_every_state_can_end_and_nothing_leaves_released(self, table: Table[Any, Any]) -> None:
        """From each state RELEASED can be reached, and it has no way out."""
        states = {state for state, _ in table} | set(table.values())
        for state in states:
            reachable, grown = {state}, True
            while grown:
                more = reachable | {table[key] for key in table if key[0] in reachable}
                grown, reachable = more != reachable, more
            assert "RELEASED" in {reached.name for reached in reachable}
        assert not [key for key in table if key[0].name == "RELEASED"]
        steps = [cell for row in as_markdown(table).splitlines()[2:] for cell in row.split(" | ")[1:]]
        assert len(table) == sum(cell.strip(" |") != "-" for cell in steps)
