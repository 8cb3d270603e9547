# SPDX-License-Identifier: Apache-2.0
"""`writeStream.foreachBatch`: a function of the driver's is called with the rows since the last checkpoint.

The tasks store the rows with the query's checkpoints (`stream.batch_files`). When one is complete a thread of the
query's calls the function, with a DataFrame over the files and the batch's number. An exception out of it ends the
query; the next run calls it again with the same number and the same rows, and says so.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.api.streaming.places import filesystem_of, reader_of_rows
from penstock.api.streaming.query import QueryHooks
from penstock.api.streaming.sinks import Made, SinkRequest
from penstock.errors import OutsideError, PenstockError, SlotsError
from penstock.graph import JobGraph
from penstock.machine.locations import is_uri
from penstock.stream.batch_files import BatchFiles, FileBatch
from penstock.stream.folder_sink import FolderSink
from penstock.task import failure_text

_LOG = logging.getLogger(__name__)

BatchFunction = Callable[[Any, int], None]
_FOLDER = "foreach-batch"
_TRIES = 20
"""So often the end of a query tries to take its last batch, half a second apart."""
_TRY_SECONDS = 0.5


def for_each_batch(function: BatchFunction, request: SinkRequest, location: str) -> Made:
    """The sink of a function, and the driver's part for it."""
    request.refuse_others("foreachBatch")
    from penstock.spark.user_thread import UserThread

    spark, thread = request.spark, UserThread.capture(request.spark)
    reader = reader_of_rows(spark, request.schema, "foreachBatch")
    place = f"{location}/{_FOLDER}"
    filesystem, folder = filesystem_of(place, "writeStream")
    start = place if is_uri(location) else f"file:{place}"

    def call(batch: FileBatch) -> None:
        thread.apply(spark)
        function(reader.parquet(*(f"{start}/{name}" for name in batch.files)), batch.number)

    batches = BatchFiles(filesystem, folder, location)
    batches.refuse_others(request.schema)
    caller = BatchCaller(batches, call, request.name or request.query)
    sink = replace(FolderSink(filesystem, folder, request.schema, request.uid), has_epochs=True)
    return sink, QueryHooks(caller.wake, finish=caller.finish, failure=lambda: caller.failure)


def refuse_without_slots(graph: JobGraph, at_hand: int, total: int) -> None:
    """Raise SlotsError where a query with a function leaves no slot for the Spark jobs of that."""
    needed = sum(vertex.slots for vertex in graph.vertices)
    if needed >= at_hand:
        raise SlotsError(
            f"foreachBatch runs Spark jobs beside the query, and these need a task slot: the query takes {needed} of"
            f" {at_hand} that are at hand ({total} in all), which leaves none. Give its stages fewer tasks"
            " (numPartitions), or the session more slots"
        )


class BatchCaller:
    """The thread that calls one query's function."""

    def __init__(self, batches: BatchFiles, call: Callable[[FileBatch], None], title: str) -> None:
        self._batches = batches
        self._call = call
        self._title = title
        self._changed = threading.Event()
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self.failure: PenstockError | None = None
        """Why it calls no more."""

    def wake(self) -> None:
        """A checkpoint is complete."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"penstock-batches-{self._title}", daemon=True)
            self._thread.start()
        self._changed.set()

    def finish(self) -> None:
        """The query has ended: call for what is complete, and return after that."""
        self._is_ending = True
        self.wake()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self.failure is None:
            self._changed.wait()
            self._changed.clear()
            is_last = self._is_ending
            try:
                self._call_all(is_last=is_last)
            except BaseException as error:  # noqa: BLE001 - whatever it is, sys.exit() too, it ends the query
                self.failure = _failure(error)
            if is_last:
                return

    def _call_all(self, *, is_last: bool) -> None:
        while (batch := self._take(is_last=is_last)) is not None:
            if batch.is_again:
                _LOG.warning(
                    "query %s: foreachBatch calls its function again with batch %d: the last call did not end well",
                    self._title,
                    batch.number,
                )
            try:
                self._call(batch)
            except BaseException as error:
                error.add_note(f"raised in batch {batch.number} of foreachBatch")
                raise
            self._insist(functools.partial(self._batches.done, batch), _TRIES)

    def _take(self, *, is_last: bool) -> FileBatch | None:
        """The next batch; where the folder is away the next checkpoint asks again, the query's end insists."""
        try:
            found: FileBatch | None = self._insist(self._batches.take, _TRIES if is_last else 1)
        except OutsideError as error:
            if is_last:
                raise
            _LOG.warning("query %s: a batch can't be taken yet: %s", self._title, error)
            return None
        return found

    def _insist(self, work: Callable[[], Any], tries: int) -> Any:
        for left in reversed(range(tries)):
            try:
                return work()
            except (OSError, PenstockError) as error:
                if not left:
                    raise OutsideError(f"the folder of foreachBatch can't be used: {error}") from error
                threading.Event().wait(_TRY_SECONDS)
        return None


def _failure(error: BaseException) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    made = PenstockError(f"the function of foreachBatch failed: {failure_text(error).strip()}")
    made.__cause__ = error
    return made
