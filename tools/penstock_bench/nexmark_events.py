# SPDX-License-Identifier: Apache-2.0
"""The events of Nexmark, an auction house: a seeded generator, made block by block with NumPy.

Of fifty events in a row one is a new person, three are new auctions and 46 are bids: 2, 6 and 92 %. Event `n` happens
`n / RATE` seconds after the beginning, and comes up to `DISORDER` seconds out of order within its block. A block's
events depend on its number and the seed alone, so a source reads the same rows again from any block.

The columns are those of Nexmark's queries. Sizes of texts are smaller than those of the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TIME = pa.timestamp("us", "UTC")
BEGIN = 1_700_000_000_000_000
"""Microseconds: the time of event 0."""
RATE = 10_000
"""Events for each second of event time."""
DISORDER = 0.5
"""Seconds. Twice that is a delay with which no row is late."""
GROUP = 50
BLOCK_GROUPS = 200
PERSONS, AUCTIONS = 1, 3
FIRST_ID = 1000
HOT = 100
"""Half of all bids go to the newest auction whose number is a multiple of this, and come from such a person."""
LONGEST_AUCTION = 20.0
"""Seconds."""

PERSON = pa.schema(
    [
        *(("id", pa.int64()), ("name", pa.string()), ("email", pa.string())),
        *(("city", pa.string()), ("state", pa.string()), ("ts", TIME)),
    ]
)
AUCTION = pa.schema(
    [
        *(("id", pa.int64()), ("item", pa.string()), ("initial", pa.int64()), ("reserve", pa.int64())),
        *(("ts", TIME), ("expires", TIME), ("seller", pa.int64()), ("category", pa.int64())),
    ]
)
BID = pa.schema(
    [
        *(("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string())),
        *(("url", pa.string()), ("ts", TIME), ("extra", pa.string())),
    ]
)
SCHEMAS = {"persons": PERSON, "auctions": AUCTION, "bids": BID}

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_SURNAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_HOT_CHANNELS = len(_CHANNELS)
_MORE_CHANNELS = 60
_EXTRAS = ("abc", "ccc", "xyz", "c", "", "cabbage", "occurrence")

Numbers = npt.NDArray[np.int64]


def block(kind: str, seed: int, number: int) -> pa.RecordBatch:
    """The events of one kind in a block, in the order in which they come."""
    rng = np.random.default_rng((seed, number, list(SCHEMAS).index(kind)))
    places = _places(kind, number)
    arrived = np.argsort(places + rng.uniform(0, DISORDER * RATE, len(places)), kind="stable")
    places = places[arrived]
    times = BEGIN + places * (1_000_000 // RATE)
    made = {"persons": _persons, "auctions": _auctions, "bids": _bids}[kind](rng, places, times)
    return pa.RecordBatch.from_arrays(made, schema=SCHEMAS[kind])


def blocks_of(events: int) -> int:
    """The number of blocks that have so many events of all kinds, at least."""
    return -(-events // (GROUP * BLOCK_GROUPS))


@dataclass(frozen=True)
class NexmarkRows:
    """One kind of events as rows of a `PartitionedSource`: blocks are dealt out to its partitions in turns."""

    kind: str
    seed: int
    blocks: int
    count: int = 1

    @property
    def name(self) -> str:
        """Tells the three sources of a query apart."""
        return self.kind

    @property
    def schema(self) -> pa.Schema:
        """The columns of the kind."""
        return SCHEMAS[self.kind]

    def partitions(self) -> Sequence[str]:
        """Their numbers."""
        return [str(number) for number in range(self.count)]

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """The blocks after an offset, which is the number of the next one."""
        first = int(partition) if offset is None else int(offset)
        for number in range(first, self.blocks, self.count):
            yield block(self.kind, self.seed, number), number + self.count


def _places(kind: str, number: int) -> Numbers:
    """The numbers of a block's events of one kind among all events."""
    first, last = {"persons": (0, PERSONS), "auctions": (PERSONS, PERSONS + AUCTIONS)}.get(kind, (4, GROUP))
    groups = np.arange(number * BLOCK_GROUPS, (number + 1) * BLOCK_GROUPS, dtype=np.int64)
    return (groups[:, None] * GROUP + np.arange(first, last)).ravel()


def _newest(places: Numbers, each: int) -> Numbers:
    """The number of persons, or auctions, that there are at these events."""
    return places // GROUP * each + each


def _persons(rng: np.random.Generator, places: Numbers, times: Numbers) -> list[pa.Array]:
    count = len(places)
    first, last = (_chosen(rng, words, count) for words in (_NAMES, _SURNAMES))
    names = _joined(first, " ", last)
    return [
        _numbers(FIRST_ID + places // GROUP),
        names,
        _joined(first, ".", last, "@example.com"),
        _chosen(rng, _CITIES, count),
        _chosen(rng, _STATES, count),
        _times(times),
    ]


def _auctions(rng: np.random.Generator, places: Numbers, times: Numbers) -> list[pa.Array]:
    count = len(places)
    numbers = places // GROUP * AUCTIONS + places % GROUP - PERSONS
    initial = _prices(rng, count)
    lasts = rng.uniform(1.0, LONGEST_AUCTION, count) * 1_000_000
    return [
        _numbers(FIRST_ID + numbers),
        _joined(_chosen(rng, ("lamp", "chair", "vase", "clock"), count), " ", _texts(rng.integers(0, 50, count))),
        _numbers(initial),
        _numbers(initial + _prices(rng, count)),
        _times(times),
        _times(times + lasts.astype(np.int64)),
        _numbers(FIRST_ID + _hot(rng, _newest(places, PERSONS))),
        _numbers(rng.integers(10, 15, count)),
    ]


def _bids(rng: np.random.Generator, places: Numbers, times: Numbers) -> list[pa.Array]:
    count = len(places)
    number = rng.integers(0, _MORE_CHANNELS, count)
    is_hot = rng.random(count) < 0.5
    hot = rng.integers(0, _HOT_CHANNELS, count)
    channels = np.where(is_hot, hot, _HOT_CHANNELS + number)
    names = pa.array([*_CHANNELS, *(f"channel-{each}" for each in range(_MORE_CHANNELS))])
    urls = pa.array(
        [
            *(f"https://www.nexmark.com/{each}/item/x.htm?query=1" for each in _CHANNELS),
            *(f"https://www.nexmark.com/a/b{each}/x.htm?query=1&channel_id={each}" for each in range(_MORE_CHANNELS)),
        ]
    )
    return [
        _numbers(FIRST_ID + _hot(rng, _newest(places, AUCTIONS))),
        _numbers(FIRST_ID + _hot(rng, _newest(places, PERSONS))),
        _numbers(_prices(rng, count)),
        names.take(_numbers(channels)),
        urls.take(_numbers(channels)),
        _times(times),
        _chosen(rng, _EXTRAS, count),
    ]


def _hot(rng: np.random.Generator, there: Numbers) -> Numbers:
    """For each event one of the numbers below: half of them the newest hot one, others of the last two hundred."""
    newest = there - 1
    recent = newest - rng.integers(0, 2 * HOT, len(there))
    return np.maximum(np.where(rng.random(len(there)) < 0.5, newest // HOT * HOT, recent), 0)


def _prices(rng: np.random.Generator, count: int) -> Numbers:
    """Cents, spread over six powers of ten."""
    return np.rint(10.0 ** rng.uniform(2, 8, count)).astype(np.int64)


def _numbers(values: Numbers) -> pa.Array:
    return pa.array(np.ascontiguousarray(values, np.int64))


def _times(values: Numbers) -> pa.Array:
    return _numbers(values).cast(TIME)


def _chosen(rng: np.random.Generator, words: Sequence[str], count: int) -> pa.Array:
    return pa.array(words).take(_numbers(rng.integers(0, len(words), count)))


def _texts(values: Numbers) -> pa.Array:
    return _numbers(values).cast(pa.string())


def _joined(*parts: Any) -> pa.Array:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, "")
