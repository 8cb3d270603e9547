# SPDX-License-Identifier: Apache-2.0
"""Random and mutated bytes for the frame decoder: `python tests/support/fuzz_frames.py --seed 1 --count 1000000`.

Each case is a stream of frames, or noise, damaged in some way and cut anywhere. Some frames are damaged before they
get their checksum, as only a peer that means it would send them. The decoder may answer with messages
or with ProtocolError, nothing else, and must never ask for a target of no bytes or keep more memory than its limits.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from penstock.connection.frames import HEADER, beginning, read_beginning
from penstock.errors import ProtocolError
from penstock.network.decoder import FrameDecoder
from penstock.network.frames import BUFFER, CLIENT_TYPES, SERVER_TYPES, FrameType, encode, payload_checksum
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
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId


def some_message(rng: random.Random) -> Message:
    """One valid message of any type."""
    receiver = rng.getrandbits(64)
    payload = rng.randbytes(rng.choice((0, 1, 40, 300)))
    kind, checksum = rng.choice((0, 0, 1, 2, 3, 9)), payload_checksum(payload)
    header = BufferHeader(receiver, rng.getrandbits(32), rng.getrandbits(32), 3, kind, checksum, len(payload))
    return rng.choice(
        (
            BufferResponse(header, payload),
            BufferResponse(header, payload),
            PartitionRequest(
                receiver,
                PartitionId(DatasetId("data" * rng.randint(1, 5), rng.randint(0, 99)), 3, -1),
                2,
                rng.randint(2, 9),
                2,
            ),
            BacklogAnnouncement(receiver, rng.randint(1, 99)),
            AddCredit(receiver, rng.randint(1, 99)),
            ResumeConsumption(receiver),
            CancelPartitionRequest(receiver),
            CloseRequest(),
            ErrorResponse(rng.choice((None, receiver)), rng.choice(list(ErrorCode)), "text " * rng.randint(0, 9)),
            Ping(receiver),
            Pong(receiver),
        )
    )


def forged(rng: random.Random, frame: bytes) -> bytes:
    """The frame with another body, type, flags or length, and a checksum that is right for it."""
    _, kind, flags, _ = read_beginning(frame, limit=1 << 32, flags=0xFFFF)
    end = HEADER.size + BUFFER.size if kind == FrameType.BUFFER_RESPONSE else len(frame)
    body, payload = damaged(rng, bytearray(frame[HEADER.size : end])), frame[end:]
    if rng.random() < 0.2:
        kind, flags = rng.choice((kind, rng.getrandbits(4))), rng.choice((flags, rng.getrandbits(2)))
    return beginning(kind, bytes(body), len(payload) + rng.choice((0, 0, 0, 1)), flags) + payload


def damaged(rng: random.Random, stream: bytearray) -> bytearray:
    """The stream after a few random edits; edits of the first bytes of frames are likely."""
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        if not stream:
            break
        position = rng.randrange(min(len(stream), rng.choice((8, 50, len(stream)))))
        edit = rng.randrange(5)
        if edit == 0:
            stream[position] ^= 1 << rng.randrange(8)
        elif edit == 1:
            del stream[position : position + rng.randint(1, 8)]
        elif edit == 2:
            stream[position:position] = rng.randbytes(rng.randint(1, 8))
        elif edit == 3:
            stream[position : position + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff"))
        else:
            del stream[position:]
    return stream


def feed(rng: random.Random, decoder: FrameDecoder, stream: bytearray) -> int:
    """Feed the stream in random cuts; the number of messages that came out."""
    messages, position = 0, 0
    while position < len(stream):
        target = decoder.next_target()
        if not 0 < len(target) <= 1 << 20:
            raise AssertionError(f"a target of {len(target)} bytes")
        count = min(len(target), len(stream) - position, rng.choice((1, 7, 50, 100_000)))
        target[:count] = stream[position : position + count]
        position += count
        decoder.received(count)
        while decoder.next_message() is not None:
            messages += 1
    return messages


def fuzz(seed: int, count: int) -> Counter[str]:
    """Run `count` cases; outcomes by name. Anything but a ProtocolError propagates."""
    rng = random.Random(seed)
    segment = memoryview(bytearray(512))
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        if rng.random() < 0.1:
            stream = bytearray(rng.randbytes(rng.randint(0, 200)))
        else:
            frames = [encode(some_message(rng)) for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.5:
                stream = damaged(rng, bytearray(b"".join(frames)))
            else:
                stream = bytearray(b"".join(forged(rng, each) for each in frames))
        accepts = rng.choice((CLIENT_TYPES, SERVER_TYPES, CLIENT_TYPES | SERVER_TYPES))
        decoder = FrameDecoder(accepts, lambda _, header: segment if header.length <= 512 else None)
        try:
            outcomes["messages"] += feed(rng, decoder, stream)
            outcomes["clean" if decoder.is_at_boundary else "cut"] += 1
        except ProtocolError:
            outcomes["refused"] += 1
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000_000)
    arguments = parser.parse_args()
    started = time.perf_counter()
    print(dict(fuzz(arguments.seed, arguments.count)), f"{time.perf_counter() - started:.0f} s")
