# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock_bench checkpoints`: how long a checkpoint takes while a slow operator holds everything back.

Two exchanges between stages of four tasks; the sources give rows as fast as they go, and the last operator is busy
for some microseconds with each row. Checkpoints are asked for one after the other, once the sources stand still most
of the time. Each way to take them is measured in queries of its own.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from penstock_bench import catalogue
from penstock_bench.catalogue import ALIGNED, UNALIGNED
from penstock_bench.checkpoint_effects import effects
from penstock_bench.checkpoint_queries import TASKS, WAYS, pressed, query
from penstock_bench.measure import MEGABYTES, RATIO, SECONDS, Outcome, Say
from penstock_bench.page_rows import Row

SLOTS = 3 * TASKS + 1
_CHECKPOINT_SECONDS = 600.0
_WARM = 1
"""The first checkpoint of a query makes folders and threads, and is not counted where others are."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """Of one query: the seconds of each checkpoint, the most megabytes in flight, and what they are to be at most."""

    seconds: tuple[float, ...]
    held: float
    bound: float

    @property
    def median(self) -> float:
        """The middle one of the seconds."""
        return statistics.median(self.seconds)


def checkpoint_outcomes(spark: Any, repeat: int, say: Say) -> list[Outcome]:
    """All rows of the catalogue's section."""
    outcomes: list[Outcome] = []
    whole = _measured(spark, catalogue.CHECKPOINTS_WHOLE, repeat, say, outcomes, inFlightTime="0s")
    unaligned = whole[10.0, UNALIGNED]
    outcomes += [
        Outcome(
            catalogue.CHECKPOINTS_HELD, penstock=(max(unaligned.held, whole[100.0, UNALIGNED].held),), unit=MEGABYTES
        ),
        Outcome(catalogue.CHECKPOINTS_BOUND, penstock=(unaligned.bound,), unit=MEGABYTES),
        _ratio(catalogue.CHECKPOINTS_SHORTER, whole[10.0, ALIGNED].median / unaligned.median),
        _ratio(catalogue.CHECKPOINTS_FLAT, whole[100.0, UNALIGNED].median / unaligned.median),
    ]
    target = _measured(spark, catalogue.CHECKPOINTS_TARGET, repeat, say, outcomes)
    outcomes += [
        Outcome(catalogue.CHECKPOINTS_TARGET_HELD, penstock=(target[10.0, UNALIGNED].held,), unit=MEGABYTES),
        _ratio(catalogue.CHECKPOINTS_TARGET_SHORTER, target[10.0, ALIGNED].median / target[10.0, UNALIGNED].median),
    ]
    return outcomes + effects(spark, say)


def _measured(
    spark: Any,
    rows: dict[tuple[float, str], Row],
    repeat: int,
    say: Say,
    outcomes: list[Outcome],
    **options: str,
) -> dict[tuple[float, str], _Measured]:
    """Each row's query, one after the other; also put into the outcomes."""
    found = {}
    for (micros, way), row in rows.items():
        # An aligned one that waits for whole segments takes half a minute.
        count = 1 if options and way == ALIGNED else max(repeat, 5)
        found[micros, way] = each = _under_pressure(spark, micros, count, **WAYS[way], **options)
        say(f"{row.label}: {each.median:.3f} s, {each.held:.1f} MB in flight (at most {each.bound:.0f})")
        outcomes.append(Outcome(row, penstock=each.seconds, unit=SECONDS))
    return found


def _under_pressure(spark: Any, micros: float, count: int, **options: Any) -> _Measured:
    """So many checkpoints of a query that is held back."""
    count += _WARM if count > 1 else 0
    # Logs are for queries that take checkpoints by themselves; none is due in this time.
    with query(spark, micros, checkpointInterval="1000s", **options) as started:
        pressed(started)
        for _ in range(count):
            started.checkpoint(_CHECKPOINT_SECONDS)
        reports = started.recentCheckpoints[-count:]
        bound = started.mostInFlightBytes / 1e6
    seconds = [report["seconds"] for report in reports]
    held = max(report["inFlightBytes"] for report in reports) / 1e6
    return _Measured(tuple(seconds[_WARM:] or seconds), held, bound)


def _ratio(row: Row, value: float) -> Outcome:
    return Outcome(row, penstock=(value,), unit=RATIO)
