# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoints list | inspect | verify | delete`, of a checkpointLocation or a savepoint.

The exit code says whether one is damaged. Only `delete` changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.checkpoint.deletion import Deletion
from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.errors import SettingError
from penstock.inspection.entries import (
    Entry,
    entries_at,
    in_flight,
    operator_sizes,
    positions,
    referred,
    stage_of,
)
from penstock.inspection.key_groups import spreads

WELL, DAMAGED = 0, 1
_WIDTH = 130
_SECONDS = {
    "start delay": "start_seconds",
    "alignment": "align_seconds",
    "sync": "freeze_seconds",
    "async": "store_seconds",
}


def list_checkpoints(location: str, *, json: bool = False) -> int:
    """Print a line for each."""
    found = entries_at(location)
    if json:
        Console().print_json(data=[_overview_json(entry) for entry in found])
    else:
        console = _console(location)
        console.print(_overview(found))
        _print_damage(console, found)
    return _code(found)


def verify_checkpoints(location: str, *, json: bool = False) -> int:
    """Compare all bytes with their checksums, and print a line for each."""
    found = entries_at(location, reads_through=True)
    if json:
        Console().print_json(data=[_overview_json(entry) for entry in found])
    else:
        console = _console(location)
        for entry in found:
            text = entry.cause or "all bytes are as they were written"
            console.print(f"{entry.title}: {text}", markup=False, soft_wrap=True)
    return _code(found)


@dataclass(frozen=True, slots=True)
class Inspected:
    """The checkpoint to be shown: its number, or None for the newest; `groups`: also how key groups are filled."""

    number: int | None = None
    groups: bool = False


def inspect_checkpoints(location: str, wanted: Inspected, *, json: bool = False) -> int:
    """Print one checkpoint: its source's positions, the sizes of its operators, and its tasks.

    Raises SettingError where there is no such checkpoint.
    """
    found = entries_at(location)
    entry = _wanted(found, wanted.number, location)
    if json:
        Console().print_json(data=_as_json(entry, location, groups=wanted.groups))
    else:
        console = _console(location)
        console.print(_overview([entry]))
        _print_entry(console, entry, groups=wanted.groups)
        _print_damage(console, [entry])
    return _code([entry])


@dataclass(frozen=True, slots=True)
class Doomed:
    """The numbers of the checkpoints to be deleted; none: all of a location, or a savepoint.

    `is_sure`: delete them, and do not only say what would go. `is_forced`: no query runs there, though it looks so.
    """

    numbers: Sequence[int] = ()
    is_sure: bool = False
    is_forced: bool = False


def delete_checkpoints(location: str, doomed: Doomed) -> int:
    """Delete checkpoints, or say what would go; raises CheckpointError where a query runs."""
    console = _console(location)
    folder = SavepointFolder(location)
    if folder.is_savepoint:
        if doomed.numbers:
            raise SettingError(f"{location} is a savepoint, which goes as a whole: leave the numbers out")
        return _deleted(console, ["the savepoint"], doomed, folder.remove)
    deletion = Deletion(location)
    deletion.refuse_running(is_forced=doomed.is_forced)
    if doomed.numbers:
        stamps = deletion.checkpoints(doomed.numbers)
        return _deleted(console, list(map(str, stamps)), doomed, lambda: deletion.delete(stamps))
    names = deletion.names()
    if not names:
        raise SettingError(f"{location} holds nothing of a query's")
    return _deleted(console, names, doomed, deletion.delete_all)


def _deleted(console: Console, names: Sequence[str], doomed: Doomed, work: Any) -> int:
    for name in names:
        console.print(f"{'deleting' if doomed.is_sure else 'would delete'} {name}", markup=False)
    if doomed.is_sure:
        work()
    else:
        console.print("nothing was deleted: say --yes to delete it")
    return WELL


def _wanted(found: Sequence[Entry], number: int | None, location: str) -> Entry:
    if number is None:
        return found[-1]
    for entry in found:
        if entry.metadata is not None and entry.metadata.number == number:
            return entry
    raise SettingError(f"{location} has no good checkpoint {number}: `penstock checkpoints list` shows them")


def _code(found: Sequence[Entry]) -> int:
    return DAMAGED if any(entry.metadata is None for entry in found) else WELL


def _console(location: str) -> Console:
    console = Console()
    console.width = max(console.width, _WIDTH)  # names are told apart by their ends
    console.print(f"location: {location}", markup=False, soft_wrap=True)
    return console


def _print_damage(console: Console, found: Sequence[Entry]) -> None:
    for entry in found:
        if entry.metadata is None:
            console.print(f"{entry.title}: {entry.cause}", markup=False, soft_wrap=True)


def _overview(found: Sequence[Entry]) -> Table:
    table = Table(
        "checkpoint", "stored at", "seconds", "tasks", "finished", "bytes", "in flight", "referred", "state"
    )
    for entry in found:
        metadata = entry.metadata
        if metadata is None:
            table.add_row(entry.title, *(["-"] * 7), "damaged")
            continue
        parts = metadata.parts.values()
        table.add_row(
            entry.title,
            datetime.fromtimestamp(metadata.triggered, UTC).isoformat(" ", "seconds"),
            f"{metadata.seconds:.3f}",
            str(len(metadata.parts)),
            str(len(metadata.finished)),
            f"{sum(part.bytes for part in parts):,}",
            f"{sum(map(in_flight, parts)):,}",
            f"{sum(map(referred, parts)):,}",
            "good",
        )
    return table


def _print_entry(console: Console, entry: Entry, *, groups: bool) -> None:
    metadata = entry.metadata
    if metadata is None:
        return
    if metadata.sink:
        console.print(f"sink: {metadata.sink}", markup=False, soft_wrap=True)
    for uid, (what, _) in metadata.sources.items():
        console.print(f"source of {metadata.stages.get(uid, uid)}: {what}", markup=False, soft_wrap=True)
    for name, text in positions(entry).items():
        console.print(f"position of {name}: {text}", markup=False, soft_wrap=True)
    sizes = Table("stage", "operator", "bytes", "tasks", "largest task")
    for (stage, operator), size in operator_sizes(metadata).items():
        sizes.add_row(stage, operator, f"{size.bytes:,}", str(size.tasks), f"{size.largest:,}")
    console.print(sizes)
    if groups:
        console.print(_groups(entry))
    tasks = Table("task", "stage", "bytes", "in flight", *(f"{title} (ms)" for title in _SECONDS))
    for name, part in sorted(metadata.parts.items()):
        figures = metadata.figures.get(name, {})
        milliseconds = [f"{figures[key] * 1000:,.1f}" if key in figures else "-" for key in _SECONDS.values()]
        tasks.add_row(name, stage_of(metadata, name), f"{part.bytes:,}", f"{in_flight(part):,}", *milliseconds)
    console.print(tasks)


def _groups(entry: Entry) -> Table:
    table = Table("stage", "operator", "rows of state", "empty groups", "rows in the median", "most rows")
    for (stage, operator), spread in spreads(entry).items():
        group, most = spread.largest
        place = (f"{spread.total:,}", f"{spread.empty} of {len(spread.rows)}", f"{spread.median:,.0f}")
        table.add_row(stage, operator, *place, f"{most:,} in group {group}")
    return table


def _overview_json(entry: Entry) -> dict[str, Any]:
    metadata = entry.metadata
    if metadata is None:
        return {"checkpoint": entry.title, "damage": entry.cause}
    return {
        "checkpoint": entry.title,
        "number": metadata.number,
        "triggered": metadata.triggered,
        "seconds": metadata.seconds,
        "bytes": sum(part.bytes for part in metadata.parts.values()),
        "referred_bytes": sum(map(referred, metadata.parts.values())),
        "finished": list(metadata.finished),
        "savepoint": metadata.savepoint,
    }


def _as_json(entry: Entry, location: str, *, groups: bool) -> dict[str, Any]:
    metadata = entry.metadata
    if metadata is None:
        return _overview_json(entry)
    found = {
        **_overview_json(entry),
        "parallelism": dict(metadata.parallelism),
        "location": location,
        "sink": metadata.sink,
        "sources": {uid: what for uid, (what, _) in metadata.sources.items()},
        "positions": positions(entry),
        "operators": [
            {"stage": stage, "operator": operator, "bytes": size.bytes, "tasks": size.tasks, "largest": size.largest}
            for (stage, operator), size in operator_sizes(metadata).items()
        ],
        "tasks": {name: _task_json(metadata, name, part) for name, part in sorted(metadata.parts.items())},
    }
    if groups:
        found["key_groups"] = [
            {"stage": stage, "operator": operator, "rows": spread.rows.tolist()}
            for (stage, operator), spread in spreads(entry).items()
        ]
    return found


def _task_json(metadata: CheckpointMetadata, name: str, part: PartHandle) -> dict[str, Any]:
    figures = metadata.figures.get(name, {})
    seconds = {
        f"{title.replace(' ', '_')}_seconds": round(figures.get(key, 0.0), 6) for title, key in _SECONDS.items()
    }
    return {
        "stage": stage_of(metadata, name),
        "bytes": part.bytes,
        "in_flight_bytes": in_flight(part),
        "referred_bytes": referred(part),
        **seconds,
    }
