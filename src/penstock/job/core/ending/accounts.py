# SPDX-License-Identifier: Apache-2.0
"""The records of one job: its partitions, in the tracker of all jobs, and its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.job.core import decisions as so
from penstock.job.core import instructions as do
from penstock.job.core.execution.tracker import PartitionTracker, Released
from penstock.job.core.result import Trace
from penstock.shuffle import DatasetId, PartitionId


class Accounts:
    """The accounts of one job."""

    def __init__(self, job: str, tracker: PartitionTracker, now: Callable[[], float]) -> None:
        self.trace = Trace()
        self._job = job
        self._tracker = tracker
        self._now = now
        self._start = now()

    @property
    def seconds(self) -> float:
        """The seconds since the job was submitted."""
        return self._now() - self._start

    def record(self, entry: so.Record) -> None:
        """Something has happened."""
        self.trace.add(self.seconds, entry.name, entry.ids)

    def track(self, track: so.Track) -> None:
        """A partition is there."""
        self._tracker.start(self._job, track.descriptor)

    def release(self, release: so.Release) -> Iterator[so.Decision]:
        """These partitions are not needed any more."""
        yield from _instructions(self._tracker.release_some(release.partitions))

    def release_read(self, read: so.ReleaseRead) -> Iterator[so.Decision]:
        """All who read these edges' partitions have."""
        datasets = {DatasetId(self._job, edge) for edge in read.edges}
        held = self._tracker.partitions_of(self._job)
        yield so.Release(tuple(partition for partition in held if partition.dataset in datasets))

    def unreadable(self, lost: so.Unreadable) -> Iterator[so.Decision]:
        """A partition can't be read: what is left of it is released; another job's owner hears of it."""
        if self._tracker.job_of(lost.partition) == self._job:
            yield so.Release((lost.partition,))
        else:
            for job, partitions in self._tracker.lose([lost.partition]).items():
                yield do.ResultLost(job, partitions, lost.cause)

    def release_all(self, keep: tuple[PartitionId, ...], environments: tuple[str, ...]) -> Iterator[so.Decision]:
        """The job is over: release all but `keep`. Where that is empty, nothing of the job is needed."""
        yield from _instructions(self._tracker.release(self._job, keep))
        if not keep:
            yield do.ReleaseJobEverywhere(self._job, environments)


def _instructions(released: Released) -> Iterator[so.Decision]:
    return (do.ReleaseDescriptors(environment, descriptors) for environment, descriptors in released.items())
