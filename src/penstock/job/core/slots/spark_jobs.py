# SPDX-License-Identifier: Apache-2.0
"""The Spark jobs of one job of ours: which there are, what each carries, which are still to return.

Two kinds: a Spark job of workers, each a Spark task that asks the JobMaster for one subtask after the other; and one
for each reading of a vertex's DataFrame, whose tasks can be no other subtasks than those of their partitions. A Spark
job that was dropped, because its DataFrame is to be read once more, counts until it has returned; what it says then
is of no interest.
"""

from __future__ import annotations

import itertools

from penstock.graph.job_graph import JobVertex
from penstock.job.core.ids import SparkJob, SparkJobId, SparkJobKind, WorkerNumber


class SparkJobs:
    """The Spark jobs of one job. That of a DataFrame's first reading has the number of its vertex."""

    def __init__(self, vertices: int) -> None:
        self._next_dataframe = itertools.count(vertices)
        self._next_launch = itertools.count()
        self._next_worker = 0
        self._open: dict[SparkJobId, SparkJob] = {}
        self._current: dict[int, SparkJobId | None] = {}
        self._slots: dict[SparkJobId, int] = {}
        self._cancelled: set[SparkJobId] = set()

    @property
    def all_returned(self) -> bool:
        """Tell whether none is under way."""
        return not self._open

    @property
    def dataframe_slots(self) -> int:
        """The slots of the DataFrames that are being read."""
        return sum(self._slots.values())

    def workers(self, count: int) -> SparkJob:
        """A new one of so many workers."""
        first, self._next_worker = self._next_worker, self._next_worker + count
        numbers = tuple(WorkerNumber(number) for number in range(first, first + count))
        launched = SparkJob(SparkJobId(SparkJobKind.WORKERS, next(self._next_launch)), numbers)
        self._open[launched.id] = launched
        return launched

    def dataframe(self, vertex: JobVertex, slots: int) -> SparkJob:
        """A new one over a vertex's DataFrame, which was given so many slots; again after `drop`."""
        is_first = vertex.id not in self._current
        number = vertex.id if is_first else next(self._next_dataframe)
        launched = SparkJob(SparkJobId(SparkJobKind.DATAFRAME, number), vertex=vertex.id, is_first=is_first)
        self._current[vertex.id] = launched.id
        self._open[launched.id] = launched
        self._slots[launched.id] = slots
        return launched

    def is_open(self, spark_job: SparkJobId) -> bool:
        """Tell whether it has not returned."""
        return spark_job in self._open

    def reader_of(self, vertex: int) -> SparkJobId | None:
        """The one that reads a vertex's DataFrame or has read it, if there is one."""
        return self._current.get(vertex)

    def is_current(self, launched: SparkJob) -> bool:
        """Tell whether its end still matters: it was not dropped."""
        return launched.vertex is None or self._current.get(launched.vertex) == launched.id

    def was_cancelled(self, spark_job: SparkJobId) -> bool:
        """Tell whether we have cancelled it, so that its end is no news."""
        return spark_job in self._cancelled

    def open_workers(self) -> list[SparkJobId]:
        """Those of workers that have not returned."""
        return [launched.id for launched in self._open.values() if launched.vertex is None]

    def open_dataframes(self) -> list[int]:
        """The vertices of the others that have not returned, dropped or not."""
        return [launched.vertex for launched in self._open.values() if launched.vertex is not None]

    def drop(self, vertex: int) -> SparkJobId | None:
        """The vertex's DataFrame will be read again: the Spark job to cancel, if it is still under way."""
        spark_job = self._current.get(vertex)
        if spark_job is not None:
            self._current[vertex] = None
        return spark_job if spark_job in self._open else None

    def cancel(self, spark_job: SparkJobId) -> bool:
        """We cancel it; whether that is new."""
        is_new = spark_job in self._open and spark_job not in self._cancelled
        self._cancelled.add(spark_job)
        return is_new

    def cancel_all(self) -> None:
        """We cancel all that are under way."""
        self._cancelled |= self._open.keys()

    def returned(self, spark_job: SparkJobId) -> SparkJob | None:
        """It is over: what it was, or None where that is known already."""
        self._slots.pop(spark_job, None)
        return self._open.pop(spark_job, None)
