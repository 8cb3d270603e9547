# SPDX-License-Identifier: Apache-2.0
"""The code of the tasks: a source that reads its files and counts each piece, and a sink for the final counts.

The source joins small files to pieces of about a megabyte and cuts large ones between words, so that one NumPy or
Arrow call sees many words. Both are picklable. The sink writes into a folder of the host that the command runs on.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.errors import SettingError
from wordcount.files import TextFile, TextRange, share_of
from wordcount.words import NotTextError, count_words, last_gap

PIECE = 1 << 20
SINK_SCHEMA = pa.schema([("path", pa.string())])


@dataclass(frozen=True, slots=True)
class TextSource:
    """Reads words with their number in each piece of text."""

    files: tuple[TextFile, ...]
    piece: int = PIECE

    @property
    def name(self) -> str:
        """The name that progress shows."""
        return "text"

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's share of the files."""
        joined: list[tuple[str, bytes]] = []
        size = 0
        for piece in share_of(self.files, subtask, parallelism):
            for text in read_pieces(piece, self.piece):
                joined.append((piece.path, text))
                size += len(text)
                if size >= self.piece:
                    yield _counted(joined)
                    joined, size = [], 0
        if joined:
            yield _counted(joined)


@dataclass(frozen=True, slots=True)
class CountsSink:
    """Writes what it gets into one Arrow file of a folder; gives no rows. A function for `mapInArrow`."""

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the file; its name appears when it is complete."""
        path = Path(self.folder, f"{uuid.uuid4().hex}.arrow")
        hidden = path.with_suffix(".part")
        writer = None
        with pa.OSFile(str(hidden), "wb") as file:
            for batch in batches:
                writer = writer or pa.ipc.new_file(file, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
        if writer is not None:
            hidden.replace(path)
        yield from ()


def read_pieces(part: TextRange, size: int) -> Iterator[bytes]:
    """The lines of a range in pieces of about this size, each cut between two words."""
    with Path(part.path).open("rb") as file:
        position = part.start
        if position:
            file.seek(position - 1)
            position += len(file.readline()) - 1
        rest = b""
        while position < part.end:
            text = file.read(min(size, part.end - position))
            if not text:
                break
            position += len(text)
            if position >= part.end and not text.endswith(b"\n"):
                line = file.readline()
                position += len(line)
                text += line
            text = rest + text
            cut = last_gap(text) if position < part.end else len(text)
            rest = text[cut:]
            if cut:
                yield text[:cut]
        if rest:
            yield rest


def read_counts(folder: str) -> pa.Table:
    """The counts that the sinks wrote."""
    tables = []
    for path in sorted(Path(folder).glob("*.arrow")):
        with pa.OSFile(str(path), "rb") as file:
            tables.append(pa.ipc.open_file(file).read_all())
    if not tables:
        return pa.schema([("word", pa.string()), ("n", pa.int64())]).empty_table()
    return pa.concat_tables(tables)


def _counted(pieces: list[tuple[str, bytes]]) -> pa.RecordBatch:
    try:
        return count_words(b"\n".join(text for _, text in pieces))
    except NotTextError:
        for path, text in pieces:
            try:
                count_words(text)
            except NotTextError as error:
                name = os.fsdecode(path)
                raise SettingError(f"{name}: it is not text ({error}): leave it out") from error
        raise
