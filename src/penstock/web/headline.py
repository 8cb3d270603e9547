# SPDX-License-Identifier: Apache-2.0
"""The one sentence at the top of the page: the phase and the stage that hold a job back, or took most of its time.

Of a query it is the stage that the others wait for. Of a batch job that is over it is the phase that took most: one
of work is said with its stage and the reason, any other one before these. A batch job that runs is always at
something: it waits, starts, or a stage is at work. A sentence for a file has no data of rows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.job.core.bottleneck import Cause
from penstock.job.core.loads import EARLY_SECONDS
from penstock.web.phases import END, READ, SHUFFLE, SLOTS, START, kind_of, said
from penstock.web.record import JobRecord

_SLOW = 1.0
"""Seconds of a snapshot from which on it is worth a word."""
_PHASE_OF = {Cause.OUTPUT.value: SHUFFLE, Cause.STORAGE.value: SHUFFLE}


def headline(record: JobRecord, *, is_file: bool = False) -> dict[str, Any]:
    """The sentence, the phase and the stage that it names, the cause; and what is to be said of slow checkpoints."""
    found = record.found if record.is_over else record.present
    slow = None if record.is_over else record.slow
    also = f"Its checkpoints are slow: {_short(record, slow['text'])}." if slow and slow["seconds"] >= _SLOW else ""
    text, phase, stage = _sentence(record, found, is_file=is_file)
    cause = found["cause"] if found is not None and found["stage"] == stage else None
    return {"text": text, "also": also, "phase": phase, "stage": stage, "cause": cause}


def _short(record: JobRecord, text: str) -> str:
    """A sentence that begins with a stage's whole name, with its short one."""
    names = {stage["name"]: record.titles[stage["id"]] for stage in record.plan["stages"]}
    whole = max((name for name in names if text.startswith(f"{name}: ")), key=len, default=None)
    return text if whole is None else f"{names[whole]}{text.removeprefix(whole)}"


def _sentence(record: JobRecord, found: Mapping[str, Any] | None, *, is_file: bool) -> tuple[str, str, int | None]:
    stage = None if found is None else found["stage"]
    if record.state == "FAILED":
        return f"It failed: {record.error.partition(chr(10))[0]}", "", stage
    if record.waits:
        return f"It has not begun, and waits for slots: {record.waits}", SLOTS, None
    if record.is_query:
        return _query(record, found, is_file=is_file), "", stage
    if record.is_over:
        return _finished(record, found)
    if found is None:
        return _at_work(record)
    phase = _phase_of(record, found)
    return f"Held back by {_named(record, found, phase, is_file=is_file)}", phase, stage


def _query(record: JobRecord, found: Mapping[str, Any] | None, *, is_file: bool) -> str:
    if found is not None:
        begin = "It was last held back by" if record.is_over else "Held back by"
        return f"{begin} {_named(record, found, '', is_file=is_file)}"
    if record.is_over:
        return "Nothing held it back."
    if record.state != "RUNNING" or record.seconds < EARLY_SECONDS:
        return "It has just begun."
    return "Nothing holds it back: no stage is back-pressured, and none is busy all the time."


def _finished(record: JobRecord, found: Mapping[str, Any] | None) -> tuple[str, str, int | None]:
    phases = record.phases()
    beside = said(phases, record.titles)
    most = max(phases, key=lambda phase: phase.seconds, default=None)
    if found is None:
        text = beside or "No stage has worked long enough to be named."
        return text, most.name if most is not None else "", most.stage if most is not None else None
    phase = _phase_of(record, found)
    bounded = f"bounded by {_named(record, found, phase, is_file=True)}"
    if beside and most is not None:
        return f"{beside} Its work was {bounded}", most.name, most.stage
    return f"Its time was {bounded}", phase, found["stage"]


def _at_work(record: JobRecord) -> tuple[str, str, int | None]:
    """A batch job that no stage holds back for certain."""
    times = record.times
    if times.admitted is None:
        return "It has just begun, and waits for slots.", SLOTS, None
    if times.is_quiet and times.last is not None and all(end is not None for _, end in times.stages.values()):
        named = [stage for stage in record.titles if stage not in times.stages]
        if not named:
            return f"It ends: {record.titles[times.last[1]]} had its last row.", END, times.last[1]
    running = [stage for stage, (_, end) in times.stages.items() if end is None]
    if not running:
        first = next((stage for stage in record.titles if stage not in times.stages), None)
        name = record.titles.get(-1 if first is None else first, "its stages")
        return f"Its tasks start: {name} has none at work yet, after {record.seconds:.1f} s.", START, first
    busy = {load.id: sum(each.busy for each in load.subtasks) for load in record.whole_loads()}
    stage = max(running, key=lambda number: busy.get(number, 0.0))
    figures = record.totals.get(stage, {})
    rows = figures.get("rows_in", 0.0) or figures.get("rows_out", 0.0)
    name = record.titles[stage]
    if not rows:
        return f"Its tasks start: those of {name} have told of no row yet.", START, stage
    phase = _busiest_kind(record, stage)
    return f"At work: {name} ({phase}), {rows:,.0f} rows so far.", phase, stage


def _busiest_kind(record: JobRecord, stage: int) -> str:
    operators = [each for load in record.whole_loads() if load.id == stage for each in load.subtasks]
    sums: dict[str, float] = {}
    for load in operators:
        for name, seconds in load.operators.items():
            kind = kind_of(name, is_source=_is_source(record, stage))
            sums[kind] = sums.get(kind, 0.0) + seconds
    return max(sums, key=lambda kind: sums[kind], default=SHUFFLE)


def _named(record: JobRecord, found: Mapping[str, Any], phase: str, *, is_file: bool) -> str:
    stage = found["stage"]
    title = record.titles.get(stage, found["name"])
    reason = record.words if record.words and not is_file else found["text"].removeprefix(f"{found['name']}: ")
    spilled = record.totals.get(stage, {}).get("spilled_bytes", 0.0)
    more = f"; it spilled {spilled / 1e6:,.1f} MB to disk" if phase and spilled else ""
    return f"{title}{f' ({phase})' if phase else ''}: {reason}{more}"


def _phase_of(record: JobRecord, found: Mapping[str, Any]) -> str:
    if found["cause"] == Cause.SOURCE.value:
        return READ if _is_source(record, found["stage"]) else SHUFFLE
    return _PHASE_OF.get(found["cause"]) or kind_of(
        found.get("operator", ""), is_source=_is_source(record, found["stage"])
    )


def _is_source(record: JobRecord, stage: int) -> bool:
    return all(edge["consumer"] != stage for edge in record.plan["edges"])
