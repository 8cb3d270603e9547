# SPDX-License-Identifier: Apache-2.0
"""Fuzzing the way from bytes to batches: `python tests/support/fuzz_codec.py [count] [seed]` (a million by default).

Three kinds of cases, in turn: a message with some bytes changed goes straight to a codec that validates fully, and
what it accepts is read to the end; the same to a codec that validates cheaply, whose batches are not touched; and
a whole stream with changed bytes, its checksums made right again or not, goes through the assembler in random
pieces. Only ProtocolError and IncompleteDataError may come out; anything else, or a crash, is a defect.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections import Counter

import pyarrow as pa
import xxhash

from penstock.errors import IncompleteDataError, ProtocolError
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler, frame_message
from penstock.record.layout import contains, is_view
from record_samples import MAKERS, batch_of, cuts


def _mutated(rng: random.Random, raw: bytes) -> bytes:
    """A few bytes, words or spans changed, or the end cut off."""
    damaged = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        where = rng.randrange(len(damaged))
        way = rng.randrange(6)
        if way == 0:
            damaged[where] ^= 1 << rng.randrange(8)
        elif way == 1:
            damaged[where] = rng.randrange(256)
        elif way == 2:
            word = struct.pack(
                "<q", rng.choice((0, 1, -1, 1 << 31, 1 << 40, 1 << 62, -(1 << 63), rng.randrange(9999)))
            )
            damaged[where : where + 8] = word[: len(damaged) - where]
        elif way == 3:
            damaged[where : where + 4] = rng.randbytes(4)[: len(damaged) - where]
        elif way == 4:
            other = rng.randrange(len(damaged))
            damaged[where : where + 8] = damaged[other : other + 8]
        elif len(damaged) > 1:
            del damaged[rng.randrange(1, len(damaged)) :]
    return bytes(damaged)


class _Subject:
    """One schema's codecs, a message and a stream of it."""

    def __init__(self, rng: random.Random) -> None:
        names = [rng.choice(sorted(MAKERS)) for _ in range(rng.randrange(1, 4))]
        batch = batch_of(names, rng.randrange(0, 20), rng.randrange(1000))
        self.full = BatchCodec(batch.schema, "full")
        self.cheap = BatchCodec(batch.schema)
        self.raw = self.full.encode(batch).to_pybytes()
        self.message = b"".join(bytes(part) for part in frame_message(pa.py_buffer(self.raw)).parts)

    def direct(self, rng: random.Random) -> None:
        batch = self.full.decode(pa.py_buffer(_mutated(rng, self.raw)))
        for column in batch.columns:
            repr(column)
        # not `nbytes`: PyArrow 26 crashes on it for an empty dense union whose buffers are left out
        half = batch.slice(batch.num_rows // 2)
        half.validate(full=True)
        # PyArrow 26 crashes when it casts views inside other types that hold garbage under a null
        if not any(contains(field.type, is_view) and not is_view(field.type) for field in batch.schema):
            assert self.full.decode(self.full.encode(half)).num_rows == half.num_rows

    def untouched(self, rng: random.Random) -> None:
        assert self.cheap.decode(pa.py_buffer(_mutated(rng, self.raw))).num_columns == len(self.cheap.schema)

    def streamed(self, rng: random.Random) -> None:
        stream = _mutated(rng, self.message * 3)
        if rng.random() < 0.7:
            payload = _mutated(rng, self.raw)
            header = struct.pack("<QQ", len(payload), xxhash.xxh3_64_intdigest(payload))
            stream = self.message + header + payload + bytes(-len(payload) % 8) + self.message
        assembler = MessageAssembler(self.full, CompletenessCounter(), limit=1 << 20)
        for piece in cuts(rng, stream, rng.choice((7, 300, 1 << 20))):
            assembler.feed(piece)
        assembler.finish()


def fuzz(rng: random.Random, count: int) -> Counter[str]:
    """Run so many cases; returns how many were accepted and refused. Any other error escapes with its case."""
    counts: Counter[str] = Counter()
    subject = _Subject(rng)
    for case in range(count):
        if case % 150 == 0:
            subject = _Subject(rng)
        run = (subject.direct, subject.untouched, subject.streamed)[case % 3]
        try:
            run(rng)
            counts["accepted"] += 1
        except (ProtocolError, IncompleteDataError):
            counts["refused"] += 1
        except BaseException:
            print(f"case {case}, schema {subject.full.schema}")
            raise
    counts["cases"] = count
    return counts


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    begin = time.perf_counter()
    print(dict(fuzz(random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0), total)))
    print(f"{time.perf_counter() - begin:.1f} s")
