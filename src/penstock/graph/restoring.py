# SPDX-License-Identifier: Apache-2.0
"""The state that the tasks of a plan begin with if a checkpoint of a perhaps different plan is restored.

Stages are matched by their uids. A stage with as many tasks as before gives each task its own part. One with another
number gives all parts to each task, which takes its share: of keyed state the rows of its key groups, of a source its
partitions, of a sink whatever is to be published. Tasks that had finished have no part, so a stage of which only some
had keeps its number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock.errors import PlanError
from penstock.graph.streaming import KEY_GROUP_HASH, SavedParts, SourceReads, part_name, vertex_of_part

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of one task: the names of parts, or that its stage had finished."""

    parts: tuple[str, ...] = ()
    is_finished: bool = False


def beginning_of(saved: SavedParts, uid: str, subtask: int, parallelism: int) -> Beginning:
    """A task's share of a checkpoint; nothing for a stage that the checkpoint does not know."""
    own = part_name(uid, subtask)
    if saved.parallelism.get(uid) == parallelism:
        return Beginning((own,) if own in saved.parts else (), own in saved.finished)
    if _is_finished(saved, uid):
        return Beginning(is_finished=True)
    numbers = sorted(number for found, number in map(vertex_of_part, saved.parts) if found == uid)
    return Beginning(tuple(part_name(uid, number) for number in numbers))


def parts_in_front(
    saved: SavedParts, stage: tuple[str, int], producers: Mapping[str, int], *, takes_all: bool = False
) -> tuple[str, ...]:
    """The parts of the stages in front whose rows in flight a stage's tasks take, because either end has changed.

    `stage` is its uid and number of tasks, `producers` are those of the stages in front by uid. Between stages that
    are as they were each task takes its own rows back, but for `takes_all`: rows are logged, or were.
    """
    uid, parallelism = stage
    before = saved.parallelism.get(uid)
    if before is None:
        return ()
    changed = {
        producer
        for producer, width in producers.items()
        if takes_all or before != parallelism or saved.parallelism.get(producer, width) != width
    }
    return tuple(sorted(name for name in saved.parts if vertex_of_part(name)[0] in changed - {uid}))


def refuse_other_plan(
    saved: SavedParts,
    groups: tuple[int, int],
    stages: Mapping[str, int],
    where: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise PlanError where a plan can't go on from a checkpoint without losing or doubling rows.

    `groups` are the numbers of key groups of the checkpoint and of the query, `stages` the query's by uid with their
    parallelism. `where` names the checkpoint in messages, `names` are those that people know of stages, by uid.
    """
    gone = sorted(uid for uid in saved.parallelism.keys() - stages.keys() if not _is_finished(saved, uid))
    if gone:
        lost = _listed(names.get(uid, uid) for uid in gone)
        new = _listed(names.get(uid, uid) for uid in sorted(stages.keys() - saved.parallelism.keys()))
        raise PlanError(
            f"{where} is of another plan: it holds the state of {len(gone)} stages ({lost}) that this query does not "
            f"have; stages of this query that are not in it: {new}. Start the query as it was, or give it another "
            "checkpointLocation"
        )
    if groups[0] != groups[1]:
        raise PlanError(
            f"{where} has {groups[0]} key groups by {KEY_GROUP_HASH}, this query {groups[1]}: its state can't be "
            "redistributed"
        )
    for uid in sorted(saved.parallelism.keys() & stages.keys()):
        was, now = saved.parallelism[uid], stages[uid]
        finished = sum(part_name(uid, subtask) in saved.finished for subtask in range(was))
        if was != now and 0 < finished < was:
            raise PlanError(
                f"{where}: {finished} of {was} tasks of stage {uid} had handled all of their data, so it must go on "
                f"with its {was} tasks, not with {now}"
            )


def refuse_other_sources(saved: SavedParts, sources: Mapping[str, SourceReads], where: str) -> None:
    """Raise PlanError where a query's sources do not read what the checkpoint has positions of.

    `sources` are the query's, by uid. A source that the checkpoint does not know begins at its start.
    """
    if not saved.sources:
        raise PlanError(
            f"{where} is of an earlier version of Penstock, which did not write down what sources read: finish the "
            "query with that version, or give it another checkpointLocation"
        )
    for uid in sorted(saved.sources.keys() & sources.keys()):
        was, now = saved.sources[uid], sources[uid]
        if was.what != now.what:
            raise PlanError(
                f"{where} says how far source {uid!r} was in {was.what}, and now it reads {now.what}: read that "
                "again, or give the query another checkpointLocation"
            )
        _refuse_other_partitions(saved, uid, now, where)
    gone = sorted(uid for uid in saved.sources.keys() - sources.keys() if not _is_finished(saved, uid))
    if gone:
        new = (sources[uid].what for uid in sorted(sources.keys() - saved.sources.keys()))
        old = (f"{saved.sources[uid].what} ({uid})" for uid in gone)
        raise PlanError(
            f"{where} says how far the query was in {_listed(old)}, which it does not read now; it reads instead: "
            f"{_listed(new)}. Read that again, under the same uid() if it had one, or give the query another "
            "checkpointLocation"
        )


def _refuse_other_partitions(saved: SavedParts, uid: str, now: SourceReads, where: str) -> None:
    known = saved.sources[uid].partitions
    if gone := sorted(set(known) - set(now.partitions)):
        raise PlanError(
            f"{where} says how far {now.what} was in partition {gone[0]!r}, which is not among "
            f"{_listed(now.partitions)}"
        )
    new = sorted(set(now.partitions) - set(known))
    finished = any(vertex_of_part(part)[0] == uid for part in saved.finished)
    if new and finished:
        raise PlanError(
            f"{where}: {now.what} has the new partition {new[0]!r}, and tasks of it had read all of their rows, so "
            "no task would read it: give the query another checkpointLocation"
        )


def refuse_finished(saved: SavedParts, where: str) -> None:
    """Raise PlanError where all tasks had finished: a query that goes on from there would read nothing."""
    if saved.parallelism and all(_is_finished(saved, uid) for uid in saved.parallelism):
        read = _listed(reads.what for reads in saved.sources.values())
        raise PlanError(
            f"{where} says that the query had read all of its rows and has ended, so it would read nothing ({read}): "
            "give it another checkpointLocation. For files that keep coming leave `bounded` out, and stop the query"
        )


def ended_sources(saved: SavedParts, sources: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each source of which tasks had read all of their rows; `sources` are names by uid."""
    for uid, name in sources.items():
        was = saved.parallelism.get(uid, 0)
        ended = sum(part_name(uid, subtask) in saved.finished for subtask in range(was))
        if ended:
            yield (
                f"{name}: {ended} of {was} tasks had read all of their rows when the checkpoint was taken, and read "
                "nothing that has come since: that takes a new checkpointLocation, or a source without an end"
            )


def _is_finished(saved: SavedParts, uid: str) -> bool:
    return all(part_name(uid, subtask) in saved.finished for subtask in range(saved.parallelism.get(uid, 0) or 1))


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (", ".join(found[:_NAMED]) + more) or "none"
