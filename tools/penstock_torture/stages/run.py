# SPDX-License-Identifier: Apache-2.0
"""Runs the program of a seed, event by event, beside its oracle."""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.testing import VirtualClock
from penstock_torture.stages.kinds import KINDS, Stage, stage_of
from penstock_torture.stages.processors import Machines
from penstock_torture.stages.rules import BEGIN, Keyed, Oracle
from penstock_torture.stages.tasks import WIDTHS, Checkpoints, State, Tasks, groups_of, tiny_thresholds
from penstock_torture.stages.values import Found, Row, batch_of, group_sizes, random_key, rows_in, spelled

_EVENTS = ("rows",) * 6 + ("watermark",) * 4 + ("checkpoint",) * 3 + ("restore",) + ("clock",)


@dataclass(frozen=True, slots=True)
class StageEnding:
    """The kind of a seed's program, what is wrong (empty: nothing), and the story up to there."""

    kind: str
    text: str
    wrong: str
    story: tuple[str, ...]


def run_stage(seed: int, kind: str = "") -> StageEnding:
    """The ending of a seed's program, or of the one of a kind."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    name = kind or list(KINDS)[seed % len(KINDS)]
    clock = VirtualClock()
    stage = stage_of(name, chance, lambda: int(clock() * 1000))
    program = _Program(stage, chance, clock)
    with tiny_thresholds(chance.random() < 0.6):
        wrong = program.run(chance.randint(5, 40))
    return StageEnding(name, f"{stage.text} by {stage.key}", wrong, tuple(program.story))


class _Program:
    """One stage under way."""

    def __init__(self, stage: Stage, chance: random.Random, clock: VirtualClock) -> None:
        self._stage = stage
        self._chance = chance
        self._clock = clock
        self._oracle: Oracle = stage.oracle
        self._reached = 0
        self._told: dict[int, int] = {}
        self._checkpoints = Checkpoints(chance)
        self._newest: tuple[list[State], Oracle] | None = None
        self.story: list[str] = []

    def run(self, events: int) -> str:
        """All events, then a watermark that all is over by; what is wrong."""
        tasks: Tasks | None = None
        try:
            tasks = Tasks(self._stage.operator, len(self._stage.keys), self._chance.choice(WIDTHS), self._clock)
            for _ in range(events):
                if wrong := self._event(self._chance.choice(_EVENTS), tasks):
                    return wrong
            self._reached += 10_000
            return self._watermark(tasks, lag=0)
        except Exception:  # noqa: BLE001 - no program may fail
            return traceback.format_exc()
        finally:
            if tasks is not None:
                tasks.close()

    def _event(self, kind: str, tasks: Tasks) -> str:
        if kind == "rows":
            return self._rows(tasks)
        if kind == "watermark":
            self._reached += self._chance.choice((1, 2, 3, 5, 10, 30))
            return self._watermark(tasks, self._chance.choice((0, 0, 2, 6)))
        if kind == "clock":
            return self._time(tasks)
        if kind == "checkpoint":
            states = self._checkpoints.take(tasks)
            self.story.append("checkpoint" if states else "checkpoint that fails")
            if states:
                self._newest = states, self._oracle.fork()
            return ""
        if self._newest is not None:
            states, oracle = self._newest
            width = self._chance.choice(WIDTHS)
            self.story.append(f"restore at {width}")
            tasks.open(width, states)
            self._checkpoints.forget()
            self._oracle = oracle.fork()
            self._told = {}
        return ""

    def _rows(self, tasks: Tasks) -> str:
        side = self._chance.randrange(len(self._stage.schemas))
        rows = [self._row(side) for _ in range(self._chance.choice((1, 2, 5, 12)))]
        keyed = self._keyed(rows, side)
        if not self._stage.has_late_rows:
            time = self._stage.schemas[side].names[len(self._stage.keys)]
            for group, row in keyed:
                if row[time] is not None:
                    row[time] = max(row[time], self._oracle.watermarks[group])
        self.story.append(f"rows of side {side}: {rows}")
        return self._compared(tasks.push(self._in_front(rows, side)), self._oracle.give(keyed, side))

    def _row(self, side: int) -> Row:
        time = self._reached + self._chance.randint(-15, 15)
        some = None if self._chance.random() < 0.05 else time
        milliseconds = int(self._clock() * 1000) if self._stage.time_mode == "processingtime" else self._reached
        row = {**random_key(self._stage.key, self._chance), "t": some, "u": some}
        row |= self._stage.columns(self._chance, milliseconds)
        return {name: row[name] for name in self._stage.schemas[side].names}

    def _keyed(self, rows: list[Row], side: int) -> list[Keyed]:
        if not self._stage.keys:
            return [(0, row) for row in rows]
        batch = batch_of(rows, self._stage.schemas[side])
        return list(zip(groups_of([batch.column(key) for key in self._stage.keys]), rows, strict=True))

    def _in_front(self, rows: list[Row], side: int) -> list[pa.RecordBatch]:
        """The batches that the tasks take of these rows, with the keys in front."""
        batches = [batch_of(rows, self._stage.schemas[side])]
        for operator in self._stage.front[side]:
            batches = [made for batch in batches for made in operator.apply(iter((batch,)))]
        return batches

    def _watermark(self, tasks: Tasks, lag: int) -> str:
        unit = 1000 if self._stage.time_mode == "eventtime" else 1
        self.story.append(f"watermark {self._reached}, by {lag} less for each task")
        found: list[pa.RecordBatch] = []
        wanted: list[Row] = []
        for task in range(tasks.width):
            watermark = (self._reached - lag * task) * unit
            if watermark > self._told.get(task, BEGIN):
                self._told[task] = watermark
                found += tasks.advance(task, watermark)
                wanted += self._oracle.advance(tasks.groups(task), watermark)
        return self._compared(found, wanted)

    def _time(self, tasks: Tasks) -> str:
        self._clock.advance(self._chance.choice((1, 3, 10, 30)) / 1000)
        if not isinstance(self._oracle, Machines):
            return ""
        self.story.append(f"clock {self._clock() * 1000:.0f} ms")
        return self._compared(tasks.fire(), self._oracle.time_passed())

    def _compared(self, found: list[pa.RecordBatch], wanted: list[Row]) -> str:
        there: Found = spelled(rows_in(found))
        right: Found = spelled(wanted)
        return "" if there == right else f"after event {len(self.story)}: {group_sizes(there, right)}"


def described(seed: int, ending: StageEnding, events: int = 12) -> list[str]:
    """Lines about a wrong program: how to run it again, and the last of its story."""
    words: list[Any] = [f"stage {seed} ({ending.kind}: {ending.text}): {ending.wrong}"]
    return [*words, *(f"    {line[:400]}" for line in ending.story[-events:])]
