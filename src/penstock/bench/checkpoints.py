# SPDX-License-Identifier: Apache-2.0
"""`penstock bench checkpoints`: how long a checkpoint takes while a slow operator holds everything back.

Two exchanges between stages of four tasks; the sources give rows as fast as they go, and the last operator is busy
for some microseconds with each row. Checkpoints are asked for one after the other, once the sources stand still most
of the time. Aligned and unaligned ones are measured in queries of their own.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from penstock.bench import catalogue
from penstock.bench.checkpoint_effects import effects
from penstock.bench.checkpoint_queries import TASKS, pressed, query
from penstock.bench.measure import MEGABYTES, RATIO, SECONDS, Outcome, Say

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
    unaligned = whole[10.0, True]
    outcomes += [
        Outcome(catalogue.CHECKPOINTS_HELD, penstock=(max(unaligned.held, whole[100.0, True].held),), unit=MEGABYTES),
        Outcome(catalogue.CHECKPOINTS_BOUND, penstock=(unaligned.bound,), unit=MEGABYTES),
        _ratio(catalogue.CHECKPOINTS_SHORTER, whole[10.0, False].median / unaligned.median),
        _ratio(catalogue.CHECKPOINTS_FLAT, whole[100.0, True].median / unaligned.median),
    ]
    target = _measured(spark, catalogue.CHECKPOINTS_TARGET, repeat, say, outcomes)
    outcomes += [
        Outcome(catalogue.CHECKPOINTS_TARGET_HELD, penstock=(target[10.0, True].held,), unit=MEGABYTES),
        _ratio(catalogue.CHECKPOINTS_TARGET_SHORTER, target[10.0, False].median / target[10.0, True].median),
    ]
    return outcomes + effects(spark, say)


def _measured(
    spark: Any,
    rows: dict[tuple[float, bool], catalogue.Row],
    repeat: int,
    say: Say,
    outcomes: list[Outcome],
    **options: str,
) -> dict[tuple[float, bool], _Measured]:
    """Each row's query, one after the other; also put into the outcomes."""
    found = {}
    for (micros, unaligned), row in rows.items():
        # An aligned one that waits for whole segments takes half a minute.
        count = 1 if options and not unaligned else max(repeat, 5)
        found[micros, unaligned] = each = _under_pressure(spark, micros, count, unaligned=unaligned, **options)
        say(f"{row.label}: {each.median:.3f} s, {each.held:.1f} MB in flight (at most {each.bound:.0f})")
        outcomes.append(Outcome(row, penstock=each.seconds, unit=SECONDS))
    return found


def _under_pressure(spark: Any, micros: float, count: int, **options: Any) -> _Measured:
    """So many checkpoints of a query that is held back."""
    count += _WARM if count > 1 else 0
    with query(spark, micros, checkpointInterval="0s", **options) as started:
        pressed(started)
        for _ in range(count):
            started.checkpoint(_CHECKPOINT_SECONDS)
        reports = started.recentCheckpoints[-count:]
        bound = started.mostInFlightBytes / 1e6
    seconds = [report["seconds"] for report in reports]
    held = max(report["inFlightBytes"] for report in reports) / 1e6
    return _Measured(tuple(seconds[_WARM:] or seconds), held, bound)


def _ratio(row: catalogue.Row, value: float) -> Outcome:
    return Outcome(row, penstock=(value,), unit=RATIO)
