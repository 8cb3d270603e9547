# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a location, or a savepoint, as the commands look at them. Nothing is claimed or changed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from penstock.checkpoint.channel_state import CHANNEL, ChannelKey
from penstock.checkpoint.deletion import Deletion
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.found import Unusable
from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.storage import CheckpointStorage, PartStorage
from penstock.errors import SettingError
from penstock.graph.streaming import SOURCE_POSITION, vertex_of_part
from penstock.machine.locations import is_uri

_POSITION, _BINARY = 300, 64
"""As long is the text of a position at most, and a binary part of it that is shown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint or a savepoint; without metadata it is damaged, which `cause` tells."""

    title: str
    storage: PartStorage
    metadata: CheckpointMetadata | None
    cause: str = ""


def entries_at(location: str, *, reads_through: bool = False) -> list[Entry]:
    """All that are complete, oldest first; raises SettingError where there is none.

    `reads_through`: also compare all bytes with their checksums.
    """
    folder = SavepointFolder(location)
    if folder.is_savepoint:
        return [_savepoint(folder, reads_through=reads_through)]
    storage = CheckpointStorage(location)
    found = [
        Entry(str(each.stamp), storage, None, each.cause)
        if isinstance(each, Unusable)
        else Entry(str(each.stamp), storage, each.metadata)
        for each in storage.history(read_through=reads_through)
    ]
    if not found:
        raise SettingError(f"{location} {_lack(location)}")
    return found


def _lack(location: str) -> str:
    """What is wrong with a place that has no complete checkpoint."""
    if Deletion(location).names():
        return "holds no complete checkpoint: its query has not come to one yet, or they were deleted"
    if not is_uri(location) and not Path(location).exists():
        return "does not exist: check the path"
    return (
        "is no checkpointLocation and no savepoint, for nothing of a query's is in it: give the folder that the"
        " option checkpointLocation names"
    )


def _savepoint(folder: SavepointFolder, *, reads_through: bool) -> Entry:
    try:
        metadata = folder.find().metadata
        for part in metadata.parts.values() if reads_through else ():
            for _ in folder.read(part):
                pass
    except CorruptCheckpointError as error:
        return Entry("savepoint", folder, None, str(error))
    return Entry(f"savepoint of {metadata.number}", folder, metadata)


def stage_of(metadata: CheckpointMetadata, part: str) -> str:
    """The name of a task's stage, as `explain` shows it; its uid in checkpoints that do not know it."""
    uid, _ = vertex_of_part(part)
    return metadata.stages.get(uid, uid)


def operator_of(chunk: str) -> str:
    """The operator that a chunk is of; rows in flight are of none."""
    name = chunk.partition("/")[0]
    return "(rows in flight)" if name == CHANNEL else name


@dataclass(slots=True)
class OperatorSize:
    """The bytes of one operator in all of its tasks, those of the largest, and their number."""

    bytes: int = 0
    largest: int = 0
    tasks: int = 0


def operator_sizes(metadata: CheckpointMetadata) -> dict[tuple[str, str], OperatorSize]:
    """By stage and operator; bytes that other checkpoints hold are counted too."""
    found: defaultdict[tuple[str, str], OperatorSize] = defaultdict(OperatorSize)
    for name, part in sorted(metadata.parts.items()):
        own: defaultdict[str, int] = defaultdict(int)
        for chunk in part.chunks:
            own[operator_of(chunk.name)] += chunk.length
        for operator, size in own.items():
            entry = found[stage_of(metadata, name), operator]
            entry.bytes += size
            entry.largest = max(entry.largest, size)
            entry.tasks += 1
    return dict(found)


def in_flight(part: PartHandle) -> int:
    """The bytes of rows in flight."""
    return sum(chunk.length for chunk in part.chunks if ChannelKey.of(chunk.name) is not None)


def referred(part: PartHandle) -> int:
    """The bytes that lie in files of other checkpoints, or of logs."""
    folder = part.path.partition("/")[0]
    elsewhere = (chunk for chunk in part.chunks if part.file_of(chunk).partition("/")[0] != folder)
    return sum(chunk.length for chunk in elsewhere)


def positions(entry: Entry) -> dict[str, str]:
    """The position of each source's task, by its part, as far as it can be read as text."""
    found: dict[str, str] = {}
    for name, part in sorted(entry.metadata.parts.items()) if entry.metadata is not None else ():
        if any(chunk.name == SOURCE_POSITION for chunk in part.chunks):
            try:
                ((_, data),) = entry.storage.read(part, [SOURCE_POSITION])
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
