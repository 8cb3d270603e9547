# SPDX-License-Identifier: Apache-2.0
"""What is run again after a failure, how often, and how soon. Pure; `graph.failover` has the rules of the set.

- Failures that come within a second of one that was counted are its consequences: one dead process is seen by its
  environment, by its consumers and by Spark, each in its own time.
- A producer that ran again and finished with another fingerprint than before gave other rows, so whoever has read the
  earlier ones is run again, ended or not, and whoever has read from those. The fingerprint covers rows, bytes and
  checksum of every subpartition; rows that only come in another order, or in other batches, count as others too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.graph.failover import downstream_of, restart_set
from penstock.graph.job_graph import RESULT_EDGE
from penstock.job.job_tasks import JobTasks, Place
from penstock.job.restart import RestartStrategy
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology
from penstock.job.tracker import PartitionTracker
from penstock.shuffle import PartitionKind
from penstock.shuffle.settings import RestartSettings

BURST_SECONDS = 1.0
"""Failures this soon after one that counted are taken for its consequences."""


class Recovery:
    """The restarts of one job. It is the `JobView` of the failover rules."""

    def __init__(
        self, topology: JobTopology, tasks: JobTasks, tracker: PartitionTracker, settings: RestartSettings
    ) -> None:
        self.round = 0
        """How many restarts there were."""
        self._topology = topology
        self._tasks = tasks
        self._tracker = tracker
        self._strategy = RestartStrategy.of(settings)
        self._counted: float | None = None

    @property
    def given_up(self) -> str:
        """Why it is not run again, for a message."""
        return f" (after {self.round} restarts; {self._strategy.describe()})" if self.round else ""

    def is_burst(self, now: float) -> bool:
        """Whether a failure now is a consequence of the last one that counted."""
        return self._counted is not None and now - self._counted < BURST_SECONDS

    def count(self, now: float) -> float | None:
        """A failure: the seconds until what failed may run again, or None when it may not."""
        if self.is_burst(now):
            return 0.0
        delay = self._strategy.next_delay(now)
        if delay is not None:
            self._counted = now
        return delay

    def restarts(self, failed: Iterable[Place]) -> frozenset[Place]:
        """What runs again when these have failed; counts as a restart."""
        self.round += 1
        return restart_set(self._topology.graph, failed, self)

    def misled(self, subtask: Subtask, fingerprints: Mapping[int, int]) -> set[Place]:
        """A subtask has finished: who has read other rows from an earlier attempt of it, directly or not."""
        before, subtask.known = subtask.known, dict(fingerprints)
        changed = [e for e in fingerprints if e != RESULT_EDGE and before.get(e, fingerprints[e]) != fingerprints[e]]
        readers: set[Place] = set()
        for edge in changed:
            consumer = self._topology.graph.edge(edge).consumer
            for number in self._topology.consumers_of(edge, subtask.index):
                reader = self._tasks.find(consumer, number)
                if reader is not None and reader.deployed and reader.round < subtask.born:
                    readers.add(reader.place)
        return readers | downstream_of(self._topology.graph, readers, self) if readers else readers

    # --- what the failover rules ask

    def has_started(self, place: Place) -> bool:
        """Whether its current attempt was deployed; of a DataFrame's tasks, which start anew together, is there."""
        subtask = self._tasks.find(*place)
        if subtask is None:
            return False
        return subtask.deployed or (subtask.vertex.reads_dataframe and subtask.attempt is not None)

    def has_finished(self, place: Place) -> bool:
        """Whether its current attempt ended well."""
        subtask = self._tasks.find(*place)
        return subtask is not None and subtask.is_finished

    def was_announced(self, edge: int, producer: int) -> bool:
        """Whether consumers know the current attempt's partition."""
        subtask = self._tasks.find(self._topology.graph.edge(edge).producer, producer)
        return subtask is not None and (edge in subtask.consumable or subtask.empty)

    def is_available(self, edge: int, producer: int) -> bool:
        """Whether the current attempt's partition can be read from its beginning."""
        description = self._topology.graph.edge(edge)
        subtask = self._tasks.find(description.producer, producer)
        if subtask is None or subtask.empty:
            return subtask is not None
        descriptor = subtask.outputs.get(edge)
        if descriptor is None or not self._tracker.knows(descriptor.partition):
            return False
        if description.kind is PartitionKind.HYBRID_SELECTIVE:
            return not subtask.is_ended and edge not in subtask.consumable
        if description.kind.is_hybrid:
            return subtask.is_finished or subtask.is_live
        return subtask.is_finished
