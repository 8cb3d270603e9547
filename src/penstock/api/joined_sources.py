# SPDX-License-Identifier: Apache-2.0
"""Unions of very many files: sources of one kind, with the same operators after them, are read by one stage.

Each branch of a union is a stage of its own, which shows where rows come from. But a stage costs the JobMaster some
work at each event: a thousand of them, with a file each, would take longer than all their rows. A source that can be
joined has `joined(others)`, one source of all their rows, or None where they differ. Branches that others read too
stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.api.lineage import (
    CombineStep,
    ExchangeStep,
    OperatorStep,
    SourceStep,
    Step,
    in_order,
    parents_of,
    with_parents,
)

MOST_BRANCHES = 32
"""The most branches that keep a stage each."""

Branch = tuple[SourceStep, tuple[OperatorStep, ...]]
"""A source, and the operators after it."""


def joined_sources(results: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same results, with few stages where there were many of one kind."""
    steps = list(in_order(results))
    readers = Counter(id(parent) for step in steps for parent in parents_of(step))
    readers.update(id(step) for step in results)
    made: dict[int, Step] = {}
    for wide in (results, *(side for step in steps for side in _sides(step))):
        if len(wide) > MOST_BRANCHES:
            for group in _alike(wide, readers):
                made.update(_joined(group))
    if not made:
        return results
    for step in steps:
        if id(step) not in made:
            made[id(step)] = _once(with_parents(step, lambda parent: made[id(parent)]))
    return _each_once(made[id(step)] for step in results)


def _sides(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The unions that a step reads."""
    if isinstance(step, CombineStep):
        return tuple(side.parents for side in step.inputs)
    return (step.parents,) if isinstance(step, ExchangeStep) else ()


def _once(step: Step) -> Step:
    """The step, which reads parents that have become one once."""
    if isinstance(step, CombineStep):
        return replace(step, inputs=tuple(replace(side, parents=_each_once(side.parents)) for side in step.inputs))
    return replace(step, parents=_each_once(step.parents)) if isinstance(step, ExchangeStep) else step


def _each_once(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple({id(step): step for step in steps}.values())


def _alike(branches: Sequence[Step], readers: Counter[int]) -> Iterable[list[tuple[Step, Branch]]]:
    """The branches that have nothing before their source but the same operators, by these."""
    groups: dict[tuple[object, ...], list[tuple[Step, Branch]]] = {}
    for step in branches:
        branch = _branch(step, readers)
        if branch is not None:
            source, operators = branch
            key = (type(source.source), source.partitions, *(id(each.operator) for each in operators))
            groups.setdefault(key, []).append((step, branch))
    return groups.values()


def _branch(step: Step, readers: Counter[int]) -> Branch | None:
    operators: list[OperatorStep] = []
    while isinstance(step, OperatorStep) and readers[id(step)] == 1:
        operators.append(step)
        step = step.parent
    if not isinstance(step, SourceStep) or readers[id(step)] != 1 or not hasattr(step.source, "joined"):
        return None
    return step, tuple(reversed(operators))


def _joined(group: Sequence[tuple[Step, Branch]]) -> dict[int, Step]:
    """What each of these branches becomes: the same step."""
    first, operators = group[0][1]
    sources = [branch[0] for _, branch in group]
    if len(group) == 1:
        return {}
    whole = first.source.joined([each.source for each in sources[1:]])  # type: ignore[union-attr]
    if whole is None or any(not each.schema.equals(first.schema, check_metadata=True) for each in sources):
        return {}
    sizes = [each.bytes for each in sources]
    known = [size for size in sizes if size is not None]
    limit = sum(each.limit or 1 for each in sources)
    last: Step = replace(
        first, name=whole.name, source=whole, limit=limit, bytes=sum(known) if len(known) == len(sizes) else None
    )
    for each in operators:
        last = replace(each, parent=last)
    return {id(step): last for step, _ in group}
