# SPDX-License-Identifier: Apache-2.0
"""Random sequences of one to four verbs with state, each of what the one before gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from penstock.api.stream import Stream
from penstock_torture.stages.query_pairs import Joined, Top
from penstock_torture.stages.query_processors import Processed
from penstock_torture.stages.query_verbs import Distinct, Grouped, Rows, Shape

Verb = Distinct | Grouped | Joined | Top | Processed
_BOUNDS = ((-30, 50), (20, 50), (-70, -20), (0, 0))
_DISTINCT = ("dropDuplicates", "dropDuplicatesWithinWatermark")


def random_verbs(chance: random.Random, *, beside_spark: bool = False) -> list[Verb]:
    """Those of a query; beside Spark without what it lacks, and with what only runs that end have alike."""
    shape, found = Shape(), list[Verb]()
    count = chance.randint(1, 4)
    for number in range(count):
        # Structured Streaming's store for processors fails with sessions in the same query.
        has_sessions = beside_spark and any(isinstance(each, Grouped) and each.kind == "sessions" for each in found)
        if number == 0 and chance.random() < 0.3:
            found.append(_join(chance))
        elif found and number == count - 1 and shape.keys and not has_sessions and chance.random() < 0.4:
            # Rows of an outer join come when their time is over: their timers fire at once, in Spark at last.
            is_outer = isinstance(found[0], Joined) and found[0].how != "inner"
            found.append(_last(chance, shape, beside_spark=beside_spark, has_sums=beside_spark and not is_outer))
        else:
            is_distinct = bool(found) and isinstance(found[-1], Distinct)
            found.append(_random_verb(chance, shape, is_distinct=is_distinct, beside_spark=beside_spark))
        shape = found[-1].shape
    return found


def inputs_of(verbs: Sequence[Verb]) -> int:
    """The number of streams that the first verb takes."""
    return 2 if isinstance(verbs[0], Joined) else 1


def of_streams(verbs: Sequence[Verb], streams: Sequence[Stream], widths: Sequence[int]) -> Stream:
    """The query over these."""
    for verb, width in zip(verbs, widths, strict=True):
        streams = (verb.of_stream(streams, width),)
    return streams[0]


def of_lists(verbs: Sequence[Verb], inputs: Sequence[Rows]) -> Rows:
    """All that comes of rows."""
    for verb in verbs:
        inputs = (verb.of_rows(inputs),)
    return list(inputs[0])


def _join(chance: random.Random) -> Joined:
    how = chance.choice(("inner", "inner", "left", "right", "full"))
    time = {"left": "t", "right": "u"}.get(how) or chance.choice("tu")
    return Joined(Shape(time=time), how, chance.choice(_BOUNDS))


def _last(chance: random.Random, shape: Shape, *, beside_spark: bool, has_sums: bool) -> Verb:
    if not beside_spark and chance.random() < 0.4:
        return Top(shape, chance.choice((1, 3)))
    return Processed(shape, chance.choice((1, 37, 150, 0)), has_sums=has_sums)


def _random_verb(chance: random.Random, shape: Shape, *, is_distinct: bool, beside_spark: bool) -> Verb:
    kinds: tuple[str, ...] = ("windows", "their own")
    if shape.time:
        kinds = ("windows", "sessions") if is_distinct else ("windows", "sessions", "distinct")
    kind = chance.choice(kinds)
    if kind == "distinct":
        return Distinct(shape, chance.choice(_DISTINCT))
    keys = tuple(key for key in shape.keys if chance.random() < 0.7)
    if kind == "their own" and shape.window == "session_window" and not (keys and beside_spark):
        keys = shape.keys  # by fewer, sessions touch or not as the watermark goes; and Spark has none of all rows
    after = replace(shape, keys=keys, figure="total", time="")
    if kind == "their own":
        return Grouped(after, shape, kind)
    if kind == "sessions":
        gap = chance.choice((1, 5, 20))
        keys = keys or shape.keys  # Spark has no sessions of all rows
        return Grouped(replace(after, keys=keys, window="session_window"), shape, kind, (gap, gap))
    sizes = ((50, 50), (60, 20), (100, 40)) if shape.time else ((300, 300), (500, 500))
    return Grouped(replace(after, window="window"), shape, kind, chance.choice(sizes))
