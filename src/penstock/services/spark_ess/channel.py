# SPDX-License-Identifier: Apache-2.0
"""One channel of a gate: from the question for its manifest to its end, and why it can't be read. Pure.

A service knows files and nothing of partitions, so the answer is put together from what it has and has not:

| manifest | mark of the end | mark of a failure | means |
|---|---|---|---|
| there | | | it is complete |
| not there | | there | its producer failed; the mark is the cause |
| not there, asked twice | there | | it was released, or its file was removed |
| not there | not there | not there | not produced yet: asked again, until the deadline |
| executor unknown | | | its host is not there yet, or lost, if it stays so |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.errors import (
    AuthenticationError,
    PartitionError,
    PartitionNotProducedError,
    PartitionReleasedError,
    ProducerFailedError,
)
from penstock.partition.file_header import damaged
from penstock.services.fetching.extent_batches import FetchedExtent
from penstock.services.fetching.extent_channel import ExtentChannel
from penstock.services.spark_ess.fetches import Fetched, Wanted
from penstock.services.spark_ess.manifest import ExtentRun, Manifest
from penstock.services.spark_ess.messages import Block
from penstock.services.spark_ess.places import Place, names_of
from penstock.shuffle import ChannelDescriptor, Received

if TYPE_CHECKING:
    import pyarrow as pa

_AGAIN_SECONDS = 0.02
_UNKNOWN_EXECUTOR = "not registered"
_NO_LOGIN = ("Expected SaslMessage", "SecurityException")


class Stage(Enum):
    """The stages of a channel."""

    WAITING = "waiting"
    MANIFEST = "manifest"
    MARKS = "marks"
    AGAIN = "manifest again"
    DATA = "data"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ChannelPatience:
    """The seconds that a channel waits for its producer, and for a host that is not there."""

    producer: float
    host: float


class ChannelReader(ExtentChannel):
    """Life: `wants` and `took` in turns, `next` as long as it gives something; `is_over` at the end."""

    def __init__(self, number: int, wanted: ChannelDescriptor, schema: pa.Schema, patience: ChannelPatience) -> None:
        self._place = Place.from_text(wanted.source.location)
        self._path = names_of(self._place.number)[0]
        super().__init__(number, wanted, schema, self._path)
        self._patience = patience
        self._stage = Stage.WAITING
        self._asked: dict[Wanted, ExtentRun | None] = {}
        self._due = 0.0
        """The time at which it is asked for again."""
        self._began: float | None = None
        self._marks: list[Fetched] = []
        self._broken = ""
        """The reason for which data could not be read, though the manifest was there."""
        self._manifest: Manifest | None = None

    @property
    def is_over(self) -> bool:
        """True if everything was given."""
        return self._stage is Stage.ENDED and not self._batches

    @property
    def due(self) -> float | None:
        """The time at which it wants something, if it does."""
        return self._due if self._stage is Stage.WAITING else None

    def wants(self, now: float) -> list[Wanted]:
        """The blocks to fetch now, if any."""
        if self._stage is not Stage.WAITING or now < self._due:
            return []
        is_again = self._began is not None
        if self._began is None:
            self._began = now
        return self._ask(Stage.MANIFEST, self._question(self._place.manifest, is_doubtful=is_again))

    def took(self, fetched: Fetched, now: float) -> list[Wanted]:
        """Something came; the blocks to fetch next. Raises the PartitionError that says why it can't be read."""
        if fetched.wanted not in self._asked:
            return []  # of data that is given up
        piece = self._asked.pop(fetched.wanted)
        if any(word in fetched.error for word in _NO_LOGIN):
            raise AuthenticationError(
                f"{self._origin} is refused by its shuffle service, which wants a login: {fetched.error}. Give Spark"
                " the cluster's own spark.authenticate and spark.authenticate.secret"
            )
        match self._stage:
            case Stage.DATA if fetched.data is not None and piece is not None:
                self._batches.append(self._read(piece, fetched.data))
                self._end_if_all_is_there()
                return []
            case Stage.DATA:
                self._broken = fetched.error
                return self._ask_marks()
            case Stage.MARKS:
                return self._took_mark(fetched, now)
            case _ if fetched.data is not None:
                return self._begin(fetched.data)
            case Stage.AGAIN:
                raise self._error(PartitionReleasedError, "was released, or its file was removed or cut")
            case _ if _UNKNOWN_EXECUTOR in fetched.error:
                return self._later(now, fetched.error)
            case _:
                return self._ask_marks()

    def _question(self, block: Block, *, is_doubtful: bool = True) -> Wanted:
        return Wanted(self.number, self._place.executor, block, is_doubtful=is_doubtful)

    def _ask(self, stage: Stage, *wanted: Wanted) -> list[Wanted]:
        self._stage = stage
        self._asked = dict.fromkeys(wanted)
        return list(wanted)

    def _ask_marks(self) -> list[Wanted]:
        self._marks.clear()
        marks = map(self._question, (self._place.finished, self._place.failed))
        return self._ask(Stage.MARKS, *marks)

    def _took_mark(self, fetched: Fetched, now: float) -> list[Wanted]:
        self._marks.append(fetched)
        if self._asked:
            return []
        finished, failed = sorted(self._marks, key=lambda mark: mark.wanted.block)
        if failed.data is not None:
            cause = failed.data.to_pybytes().decode(errors="replace")
            raise self._error(ProducerFailedError, f"has no rows: its producer failed: {cause}")
        if finished.data is not None:
            return self._ask(Stage.AGAIN, self._question(self._place.manifest))
        if self._broken:
            raise self.lose(self._broken)
        return self._later(now, failed.error)

    def _later(self, now: float, error: str) -> list[Wanted]:
        """It is not there: ask once more, if there is time."""
        waited = now - (now if self._began is None else self._began)
        if _UNKNOWN_EXECUTOR in error:
            if waited > self._patience.host or self._broken:
                raise self.lose(f"{error} ({waited:.0f} s: spark.penstock.ess.retryTimeout)")
        elif waited > self._patience.producer:
            limit = f"{self._patience.producer:.0f} s (spark.penstock.ess.requestTimeout)"
            raise self._error(PartitionNotProducedError, f"was not produced within {limit}: {error}")
        self._stage, self._due = Stage.WAITING, now + _AGAIN_SECONDS
        return []

    def _begin(self, data: pa.Buffer) -> list[Wanted]:
        if self._broken:
            raise self.lose(self._broken)
        manifest = Manifest(data, self._place.number, self._path, self._origin)
        try:
            manifest.end(self.wanted.subpartition, self.wanted.count)
        except ValueError as error:
            raise self._error(PartitionError, f"can't be read: {error}") from None
        self._manifest = manifest
        pieces = list(manifest.pieces(self.wanted.subpartition, self.wanted.count))
        executor = self._place.executor
        self._stage = Stage.DATA
        self._asked = {Wanted(self.number, executor, piece.block, piece.size): piece for piece in pieces}
        self._end_if_all_is_there()
        return list(self._asked)

    def _end_if_all_is_there(self) -> None:
        if not self._asked:
            self._stage = Stage.ENDED
            self._batches.append(self._closing())

    def _read(self, piece: ExtentRun, data: pa.Buffer) -> Iterator[Received]:
        """The batches of a piece, each extent checked before they are given."""
        if data.size != piece.size:
            what = f"{data.size} bytes came of the {piece.size} from {piece.begin} on"
            raise damaged(self._origin, self._path, what)
        extents = [FetchedExtent(each.offset, each.length, each.checksum, times) for each, times in piece.extents]
        yield from self._rows.read(extents, piece.begin, memoryview(data).cast("B"))

    def _closing(self) -> Iterator[Received]:
        manifest, wanted = self._manifest, self.wanted
        assert manifest is not None  # noqa: S101 - it was what said that this is all
        expected = manifest.end(wanted.subpartition, wanted.count)
        return self._rows.closing(expected, f"subpartitions from {wanted.subpartition} on")
