# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoints inspect`: what lies at a checkpoint location. It claims nothing and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
from rich.console import Console
from rich.table import Table

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.found import Kept, Unusable
from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle
from penstock.checkpoint.storage import CheckpointStorage, PartStorage
from penstock.errors import SettingError
from penstock.graph.streaming import SOURCE_POSITION, vertex_of_part

DAMAGED = 1
_WIDTH = 130
_POSITION, _BINARY = 300, 64
"""As long is the text of a position at most, and a binary part of it that is shown."""
_SECONDS = {
    "start delay": "start_seconds",
    "alignment": "align_seconds",
    "sync": "freeze_seconds",
    "async": "store_seconds",
}


def inspect_checkpoints(location: str, *, verify: bool = False, json: bool = False) -> int:
    """Print all checkpoints, and the tasks of the newest; the exit code says whether one is damaged.

    Raises SettingError where there is no checkpoint.
    """
    history = CheckpointStorage(location).history(read_through=verify)
    if not history:
        raise SettingError(f"{location} holds no complete checkpoint")
    if json:
        Console().print_json(data=[_as_json(found, location) for found in history])
    else:
        _print(history, location)
    return DAMAGED if any(isinstance(found, Unusable) for found in history) else 0


def _as_json(found: Kept | Unusable, location: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"checkpoint": str(found.stamp)}
    if isinstance(found, Unusable):
        return {**entry, "damage": found.cause}
    metadata = found.metadata
    return {
        **entry,
        "triggered": metadata.triggered,
        "seconds": metadata.seconds,
        "finished": list(metadata.finished),
        "parallelism": dict(metadata.parallelism),
        "location": location,
        "sink": metadata.sink,
        "sources": {uid: what for uid, (what, _) in metadata.sources.items()},
        "positions": _positions(metadata, location),
        "tasks": {name: _task(metadata, name, part) for name, part in sorted(metadata.parts.items())},
    }


def _task(metadata: CheckpointMetadata, name: str, part: PartHandle) -> dict[str, Any]:
    figures = metadata.figures.get(name, {})
    seconds = {
        f"{title.replace(' ', '_')}_seconds": round(figures.get(key, 0.0), 6) for title, key in _SECONDS.items()
    }
    stage = _stage(metadata, name)
    return {
        "stage": stage,
        "bytes": part.bytes,
        "in_flight_bytes": _in_flight(part),
        "referred_bytes": _referred(part),
        **seconds,
    }


def _stage(metadata: CheckpointMetadata, part: str) -> str:
    """The name of a task's stage, as `explain` shows it; its uid in checkpoints that do not know it."""
    uid, _ = vertex_of_part(part)
    return metadata.stages.get(uid, uid)


def _positions(metadata: CheckpointMetadata, location: str) -> dict[str, str]:
    """The position of each source's task, by its part, as far as it can be read as text."""
    storage, found = PartStorage(location), {}
    for name, part in sorted(metadata.parts.items()):
        if any(chunk.name == SOURCE_POSITION for chunk in part.chunks):
            try:
                ((_, data),) = storage.read(part, [SOURCE_POSITION])
            except (CheckpointError, OSError) as error:
                found[name] = f"can't be read: {error}"
            else:
                found[name] = _position_text(bytes(data))
    return found


def _position_text(data: bytes) -> str:
    """A position in words; most sources pack theirs, and long binary parts are told by their lengths."""
    try:
        plain = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        plain = data
    text = repr(_shortened(plain))
    return text if len(text) <= _POSITION else f"{text[:_POSITION]}..."


def _shortened(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and len(value) <= _BINARY else f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    return [_shortened(each) for each in value] if isinstance(value, list) else value


def _in_flight(part: PartHandle) -> int:
    return sum(chunk.length for chunk in part.chunks if ChannelKey.of(chunk.name) is not None)


def _referred(part: PartHandle) -> int:
    """Of the bytes in flight those that lie in files of other checkpoints."""
    folder = part.path.partition("/")[0]
    elsewhere = (chunk for chunk in part.chunks if part.file_of(chunk).partition("/")[0] != folder)
    return sum(chunk.length for chunk in elsewhere)


def _print(history: list[Kept | Unusable], location: str) -> None:
    console = Console()
    console.width = max(console.width, _WIDTH)  # names are told apart by their ends
    overview = Table("checkpoint", "stored at", "seconds", "tasks", "finished", "bytes", "in flight", "state")
    for found in history:
        overview.add_row(*_row(found))
    console.print(f"location: {location}", markup=False, soft_wrap=True)
    console.print(overview)
    if isinstance(history[-1], Kept):
        newest = history[-1].metadata
        if newest.sink:
            console.print(f"sink: {newest.sink}", markup=False, soft_wrap=True)
        positions = _positions(newest, location)
        for uid, (what, _) in newest.sources.items():
            console.print(f"source of {newest.stages.get(uid, uid)}: {what}", markup=False, soft_wrap=True)
        for name, text in positions.items():
            console.print(f"position of {name}: {text}", markup=False, soft_wrap=True)
        tasks = Table("task of the newest", "stage", "bytes", "in flight", *(f"{title} (ms)" for title in _SECONDS))
        for name, part in sorted(newest.parts.items()):
            figures = newest.figures.get(name, {})
            milliseconds = [f"{figures[key] * 1000:,.1f}" if key in figures else "-" for key in _SECONDS.values()]
            tasks.add_row(name, _stage(newest, name), f"{part.bytes:,}", f"{_in_flight(part):,}", *milliseconds)
        console.print(tasks)
    for found in history:
        if isinstance(found, Unusable):
            console.print(f"{found.stamp}: {found.cause}", markup=False, soft_wrap=True)


def _row(found: Kept | Unusable) -> list[str]:
    if isinstance(found, Unusable):
        return [str(found.stamp), *(["-"] * 6), "damaged"]
    metadata = found.metadata
    parts = metadata.parts.values()
    return [
        str(found.stamp),
        datetime.fromtimestamp(metadata.triggered, UTC).isoformat(" ", "seconds"),
        f"{metadata.seconds:.3f}",
        str(len(metadata.parts)),
        str(len(metadata.finished)),
        f"{sum(part.bytes for part in parts):,}",
        f"{sum(map(_in_flight, parts)):,}",
        "good",
    ]
