# SPDX-License-Identifier: Apache-2.0
"""`foreachBatch` in the failing world: the driver's part of it, a function that keeps a book, and what the book says.

A driver dies while the function works, after its end, or because its mark of the end can't be written. The book is
out of the reach of the world. It says of each call its number and rows, and how far it came. Its faults: a number
called again though its call was done, or without a word that it is so; other rows for it; one left out; rows lost or
doubled.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import PenstockError
from penstock.machine.locations import here
from penstock.stream.batch_files import BatchFiles, FileBatch
from penstock.stream.folder_sink import FolderSink

FOLDER = "foreach-batch"
BEGUN, ENDED, DONE = "begun", "ended", "done"
_DEATHS = 0.04
_TRIES = 3


def batches_sink(checkpoints: Path, schema: pa.Schema, uid: str) -> FolderSink:
    """The sink as `foreachBatch` makes it; raises PlanError or CheckpointError as that does."""
    folder = str(checkpoints / FOLDER)
    BatchFiles(here(), folder, str(checkpoints)).refuse_others(schema)
    return replace(FolderSink(here(), folder, schema, uid), has_epochs=True)


class BatchDriver:
    """One driver's calls; it may die of them."""

    def __init__(self, checkpoints: Path, book: Path, chance: random.Random) -> None:
        self._files = BatchFiles(here(), str(checkpoints / FOLDER), str(checkpoints))
        self._folder = checkpoints / FOLDER
        self._book = book / "calls"
        self._chance = chance
        self.is_dead = False

    def call(self, *, lives: bool = False) -> None:
        """Call for what is complete; `lives`: it does not die. An error is tried again the next time."""
        try:
            while not self.is_dead and (batch := self._files.take()) is not None:
                self._work(batch, lives=lives)
        except (OSError, PenstockError):
            return

    def _work(self, batch: FileBatch, *, lives: bool) -> None:
        tables = [pq.read_table(self._folder / name, partitioning=None) for name in batch.files]
        rows = sorted([row["path"], row["value"]] for row in pa.concat_tables(tables).to_pylist())
        self._note({"number": batch.number, "state": BEGUN, "again": batch.is_again, "rows": rows})
        if not lives and self._chance.random() < _DEATHS:
            self.is_dead = True
            return
        self._note({"number": batch.number, "state": ENDED})
        if not lives and self._chance.random() < _DEATHS:
            self.is_dead = True
            return
        for left in reversed(range(_TRIES)):
            try:
                self._files.done(batch)
            except OSError:
                self.is_dead = not left
            else:
                self._note({"number": batch.number, "state": DONE})
                return

    def _note(self, entry: dict[str, Any]) -> None:
        self._book.parent.mkdir(exist_ok=True)
        with self._book.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def calls_in(book: Path) -> list[dict[str, Any]]:
    """The calls, each with the state that it came to."""
    calls: list[dict[str, Any]] = []
    path = book / "calls"
    for entry in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        if entry["state"] == BEGUN:
            calls.append(entry)
        else:
            calls[-1]["state"] = entry["state"]
    return calls


def batch_faults(book: Path, wanted: int, *, whole: bool) -> list[str]:
    """The faults in the book; `wanted` rows there must be in the end."""
    found: list[str] = []
    newest: dict[int, dict[str, Any]] = {}
    for call in calls_in(book):
        found += _call_faults(call, newest)
        newest[call["number"]] = call
    counts = Counter((path, value) for call in newest.values() for path, value in call["rows"])
    if doubled := sum(count > 1 for count in counts.values()):
        found.append(f"doubled: {doubled} of {wanted} rows are in two batches")
    if whole and len(counts) != wanted:
        found.append(f"lost: {wanted - len(counts)} of {wanted} rows")
    if whole and any(call["state"] != DONE for call in newest.values()):
        found.append("lost: a batch was not called to its end")
    return found


def _call_faults(call: dict[str, Any], before: dict[int, dict[str, Any]]) -> Sequence[str]:
    number, earlier = call["number"], before.get(call["number"])
    if earlier is None:
        return [] if number == len(before) else [f"lost: batch {number} came where {len(before)} was to come"]
    if earlier["state"] == DONE:
        return [f"doubled: batch {number} was called again, and its call was done"]
    if call["rows"] != earlier["rows"]:
        return [f"doubled: batch {number} has other rows the second time"]
    return [] if call["again"] else [f"doubled: batch {number} was called again, and nothing said so"]
