# SPDX-License-Identifier: Apache-2.0
"""Persisted streams: what a plan reads instead of running their pipeline again, and the list of them.

`persist` marks the steps a stream ends in. Before a job is planned, what it needs of marked steps is made by jobs of
their own, one after the other, so that none of them waits for slots that another one holds. Then the job reads
their partitions: every reader of a marked step gets a source of its own, so one persisted stream may feed both
sides of a join. A union is persisted branch by branch.

A result that has a name is the service's when its job is over: later applications of the same user read it too.

When not to use it: for a stream that one job reads once (a stage with several readers runs once anyway), or for
data that must not be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.api.known_arguments import suggests_arguments
from penstock.api.lineage import (
    CombineStep,
    ExchangeStep,
    OperatorStep,
    ResourcesStep,
    SourceStep,
    Step,
    in_order,
    with_parents,
)
from penstock.api.plan import PLANNING_SLOTS, Plan, plan_job
from penstock.errors import PlanError
from penstock.graph import explain_graph
from penstock.job.results.named import NamedResult
from penstock.job.results.result_core import MadeResult
from penstock.settings import Settings
from penstock.shuffle import load_service

if TYPE_CHECKING:
    from penstock.graph import JobGraph
    from penstock.job.core.result import FinishedJob
    from penstock.spark.datasets import HeldResult, PersistedResult
    from penstock.spark.runtime import SparkRuntime
    from penstock.spark.user_thread import UserThread
    from penstock.spark.user_types import SparkSession

_NAME = 200
_COLUMNS = ("name", "state", "rows", "bytes", "partitions", "place", "age")


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A persisted stream at one moment.

    `state` is `lazy` (no action has needed it yet), `materialised`, or `lost` (its host went; the next action makes
    it again). `rows`, `bytes` (as Arrow), `partitions`, `place` (the hosts that hold it) and `age_seconds` are those
    of what is held, so nothing unless it is materialised.
    """

    name: str
    state: str
    rows: int = 0
    bytes: int = 0
    place: str = ""
    age_seconds: float = 0.0
    partitions: int = 0

    def cells(self) -> tuple[str, ...]:
        """One row of the table."""
        age = f"{self.age_seconds:.1f} s" if self.state == "materialised" else ""
        return (self.name, self.state, f"{self.rows:,}", _size(self.bytes), str(self.partitions), self.place, age)


class DatasetList(list[DatasetInfo]):
    """Persisted streams, oldest first; shown as a table."""

    def __repr__(self) -> str:
        """A table with a line for each."""
        if not self:
            return "no persisted streams"
        rows = [_COLUMNS, *(info.cells() for info in self)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


@suggests_arguments
def datasets(spark: SparkSession) -> DatasetList:
    """The persisted streams of this session's application, with rows, bytes, place and age."""
    from penstock.spark.runtime import SparkRuntime

    return DatasetList(_info(result) for result in SparkRuntime.of(spark).persisted)


def persist_steps(branches: tuple[Step, ...], runtime: SparkRuntime, name: str = "", service: str = "") -> None:
    """Mark these steps; nothing runs. Raises PlanError for what cannot be persisted or cannot run."""
    from penstock.spark.checks import refuse_what_cannot_travel
    from penstock.spark.datasets import KeptAs

    kept = KeptAs(name, service)
    if name or service:
        _refuse_name(name, service or runtime.settings().shuffle.service, branches)
    for step in branches:
        if isinstance(step, ExchangeStep) and step.spec.kind == "broadcast":
            raise PlanError(
                "persist: a broadcast stream holds all rows once for each consumer: persist the stream before"
                " broadcast(), not after it"
            )
    reading = PersistedReading(runtime, runtime.settings())
    for step in branches:
        refuse_what_cannot_travel(plan_job(reading.outline((step,), step), reading.settings, PLANNING_SLOTS).graph)
    for step in branches:
        runtime.persisted.add(step, _title(step), kept)


def _refuse_name(name: str, service: str, branches: tuple[Step, ...]) -> None:
    if not isinstance(name, str) or len(name) > _NAME:
        raise PlanError(f"persist: a name is text of up to {_NAME} characters, not {name!r:.80}")
    if name and len(branches) > 1:
        raise PlanError("persist: a union has a result for each branch, so it has no one name: persist the branches")
    if name and not load_service(service).capabilities.keeps_by_name:
        raise PlanError(
            f"persist: the shuffle service {service!r} keeps no results by name, beyond their application: use"
            " service='external' or 'remote'"
        )


def unpersist_steps(branches: tuple[Step, ...], runtime: SparkRuntime) -> None:
    """Release what is held of these steps and forget that they were marked."""
    for step in branches:
        runtime.persisted.remove(step)


@dataclass(frozen=True, slots=True)
class PersistedReading:
    """Plans pipelines over what is persisted of them, for one action. `user` is the thread that asked for it."""

    runtime: SparkRuntime
    settings: Settings
    user: UserThread | None = None

    def plan(self, results: tuple[Step, ...], *, keep: bool = True) -> Plan:
        """The job of these results; what it reads of persisted steps is made first where it is not there."""
        slots, buffers = self.runtime.slots_at_hand(), self.runtime.buffers(self.settings)
        return plan_job(self._made(results, None), self.settings, slots, keep=keep, buffers=buffers)

    def plan_or_made(self, results: tuple[Step, ...]) -> Plan | MadeResult:
        """As `plan`; where all results are persisted themselves, what is held of them, and there is no job."""
        while (found := [self.runtime.persisted.find(step) for step in results]) and all(found):
            kept = [self._held(result) for result in found if result is not None]
            held = [item for item in kept if item is not None]
            if len(held) == len(results):
                partitions = tuple(descriptor for item in held for descriptor in item.partitions)
                return MadeResult(frozenset(item.job for item in held), partitions)
        return self.plan(results)

    def outline(self, results: tuple[Step, ...], own: Step | None = None) -> tuple[Step, ...]:
        """The results over sources without rows: what `plan` will look like. Nothing is made."""
        steps, cut = self._needed(results, own)
        return _over(results, steps, {key: self._source(result, None) for key, result in cut.items()})

    def unmade(self, results: tuple[Step, ...], own: Step | None = None) -> Iterator[PersistedResult]:
        """The persisted results that a plan of these results makes first, in that order; some more than once."""
        for result in self._needed(results, own)[1].values():
            if result.held is None:
                step = _step_of(result)
                yield from self.unmade((step,), step)
                yield result

    def explain(self, results: tuple[Step, ...]) -> str:
        """The plan as text, and before it those of the persisted results that it makes first. Runs nothing."""
        slots, buffers = self.runtime.slots_at_hand(), self.runtime.buffers(self.settings)
        parts = []
        for result in dict.fromkeys(self.unmade(results)):
            step = _step_of(result)
            text = explain_graph(plan_job(self.outline((step,), step), self.settings, slots, buffers=buffers).graph)
            parts.append(f"first, for persisted {result.name}:\n{text}\n")
        return "".join([*parts, explain_graph(self.sketch(results))])

    def sketch(self, results: tuple[Step, ...]) -> JobGraph:
        """The job that an action would run now, over sources without rows."""
        slots, buffers = self.runtime.slots_at_hand(), self.runtime.buffers(self.settings)
        return plan_job(self.outline(results), self.settings, slots, buffers=buffers).graph

    def _made(self, results: tuple[Step, ...], own: Step | None) -> tuple[Step, ...]:
        while True:
            steps, cut = self._needed(results, own)
            held = {key: self._held(result) for key, result in cut.items()}
            # Results that were dropped or lost meanwhile are not there; looking again finds them no more, or makes
            # them again.
            if all(held.values()):
                return _over(results, steps, {key: self._source(cut[key], item) for key, item in held.items()})

    def _needed(self, results: tuple[Step, ...], own: Step | None) -> tuple[list[Step], dict[int, PersistedResult]]:
        """The steps down from persisted ones, parents first, and those persisted ones by identity."""
        cut: dict[int, PersistedResult] = {}

        def is_cut(step: Step) -> bool:
            found = None if step is own else self.runtime.persisted.find(step)
            if found is not None:
                cut[id(step)] = found
            return found is not None

        return list(in_order(results, is_cut)), cut

    def _held(self, result: PersistedResult) -> HeldResult | None:
        step = _step_of(result)
        service = result.kept.service or self.settings.shuffle.service
        settings = replace(self.settings, shuffle=replace(self.settings.shuffle, service=service))

        def make(lost: Callable[[], None]) -> FinishedJob:
            def plan() -> tuple[JobGraph, dict[int, Any]]:
                slots, buffers = self.runtime.slots_at_hand(), self.runtime.buffers(self.settings)
                made = self._made((step,), step)
                return plan_job(made, settings, slots, persist=True, buffers=buffers).parts

            finished = self.runtime.finished(plan, settings, self.user, lost=lost)
            if not result.kept.name:
                return finished
            schema = _step_of(result).schema.serialize().to_pybytes()
            named = NamedResult(result.kept.name, settings.shuffle.service, schema, finished.partitions)
            return replace(finished, partitions=self.runtime.keep_result(named).partitions)

        return result.get(make)

    def _source(self, result: PersistedResult, held: HeldResult | None) -> Callable[[], SourceStep]:
        schema = _step_of(result).schema
        if held is None:
            return lambda: SourceStep(f"persisted {result.name}", schema)
        source = self.runtime.persisted_source(result.name, held, schema, self.settings)
        limit = max(1, len(held.present))
        return lambda: SourceStep(f"persisted {result.name}", schema, source, limit=limit)


def _over(
    results: tuple[Step, ...], steps: list[Step], sources: Mapping[int, Callable[[], SourceStep]]
) -> tuple[Step, ...]:
    """The results with sources in place of some steps, a new one for each reader."""
    made: dict[int, Step] = {}

    def replaced(step: Step) -> Step:
        source = sources.get(id(step))
        return made[id(step)] if source is None else source()

    for step in steps:
        if id(step) not in sources:
            made[id(step)] = with_parents(step, replaced)
    return tuple(replaced(step) for step in results)


def _step_of(result: PersistedResult) -> Step:
    step = result.step
    assert isinstance(step, Step)  # noqa: S101 - for the type checker
    return step


def _title(step: Step) -> str:
    if isinstance(step, ResourcesStep):
        return _title(step.parent)
    if isinstance(step, OperatorStep):
        return step.operator.name
    return step.combine.name if isinstance(step, CombineStep) else step.name


def _info(result: PersistedResult) -> DatasetInfo:
    state, held = result.state, result.held
    if state != "materialised" or held is None:
        return DatasetInfo(result.name, state)
    age = time.monotonic() - held.made_at
    return DatasetInfo(result.name, state, held.rows, held.bytes, held.place, age, len(held.present))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
