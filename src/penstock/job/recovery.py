# SPDX-License-Identifier: Apache-2.0
"""What is run again after a failure, how often, and how soon. Pure; `graph.failover` has the rules of the set.

- Failures that come within a second of one that was counted are its consequences: one dead process is seen by its
  environment, by its consumers and by Spark, each in its own time. Not so what was launched only after it: that is a
  failure of its own, so nothing is tried again and again without being counted.
- A producer that ran again and finished with another fingerprint than before gave other rows, so whoever has read the
  earlier ones is run again, ended or not, and whoever has read from those. The fingerprint covers rows, bytes and
  checksum of every subpartition; rows that only come in another order, or in other batches, count as others too.
- Whoever has ended on the rows of an attempt that never reported its end, which a hybrid edge allows, is run again
  with it: nobody can say whether the next attempt gives the same rows.
- A region that runs together needs its slots at the same time. Where readers hold them that wait for it, they are
  taken off and run again too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.graph.failover import downstream_of, restart_set
from penstock.graph.job_graph import RESULT_EDGE
from penstock.job.job_tasks import JobTasks, Place
from penstock.job.restart import RestartStrategy
from penstock.job.stages import Stages
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
        self,
        topology: JobTopology,
        tasks: JobTasks,
        stages: Stages,
        tracker: PartitionTracker,
        settings: RestartSettings,
    ) -> None:
        self.round = 0
        """How many restarts there were, those of consequences too."""
        self._topology = topology
        self._tasks = tasks
        self._stages = stages
        self._tracker = tracker
        self._strategy = RestartStrategy.of(settings)
        self._counted: float | None = None
        self._counted_round = 0

    @property
    def given_up(self) -> str:
        """Why it is not run again, for a message; nothing where it never was."""
        return f" ({self._strategy.describe()})" if self.round else ""

    def is_burst(self, now: float, launched: int = 0) -> bool:
        """Whether a failure now is a consequence of the last one that counted.

        `launched` is the round in which the Spark job was launched that has failed, where that is known.
        """
        soon = self._counted is not None and now - self._counted < BURST_SECONDS
        return soon and launched < self._counted_round

    def begin(self, now: float, launched: int = 0) -> float | None:
        """A failure leads to a restart: the seconds until what failed may run again, or None when it may not."""
        burst = self.is_burst(now, launched)
        delay = 0.0 if burst else self._strategy.next_delay(now)
        if delay is not None:
            self.round += 1
            if not burst:
                self._counted, self._counted_round = now, self.round
        return delay

    def restarts(self, failed: Iterable[Place]) -> frozenset[Place]:
        """What runs again when these have failed."""
        found = frozenset(failed)
        while True:
            grown = restart_set(self._topology.graph, found, self)
            grown |= self._unconfirmed_readers(grown)
            if grown == found:
                grown |= self._in_the_way(grown)
            if grown == found:
                return found
            found = grown

    def misled(self, subtask: Subtask, fingerprints: Mapping[int, int]) -> set[Place]:
        """A subtask has finished: who has read other rows from an earlier attempt of it, directly or not."""
        before, subtask.known = subtask.known, dict(fingerprints)
        changed = [e for e in fingerprints if e != RESULT_EDGE and before.get(e, fingerprints[e]) != fingerprints[e]]
        readers: set[Place] = set()
        for edge in changed:
            deployed = [reader for reader in self._readers(edge, subtask.index) if reader.deployed]
            readers |= {reader.place for reader in deployed if reader.round < subtask.born}
        return readers | downstream_of(self._topology.graph, readers, self) if readers else readers

    def _unconfirmed_readers(self, found: Iterable[Place]) -> set[Place]:
        """Who has ended on rows of an attempt that is withdrawn before it reported its end."""
        readers: set[Place] = set()
        for vertex, index in found:
            subtask = self._tasks.find(vertex, index)
            if subtask is None or subtask.is_finished:
                continue
            for edge in subtask.consumable - {RESULT_EDGE}:
                if self._topology.graph.edge(edge).kind.is_hybrid:
                    ended = [reader for reader in self._readers(edge, index) if reader.is_finished]
                    readers |= {reader.place for reader in ended if reader.round >= subtask.born}
        return readers | downstream_of(self._topology.graph, readers, self) if readers else readers

    def _in_the_way(self, found: frozenset[Place]) -> set[Place]:
        """Readers that hold slots which a region needs that they wait for."""
        taken: set[Place] = set()
        for region in {self._stages.region_of(vertex) for vertex, _ in found}:
            if region.at_once:
                again = sum(1 for vertex, _ in found if vertex in region.vertices)
                needed = again + sum(self._tasks.pending(vertex) for vertex in region.vertices)
                waiting = set(self._stages.waiting_behind(region, self._tasks, found)) - found
                if needed + len(waiting) > self._stages.slots:
                    taken |= waiting
        return taken

    def _readers(self, edge: int, producer: int) -> list[Subtask]:
        consumer = self._topology.graph.edge(edge).consumer
        if not self._tasks.is_begun(consumer):
            return []
        found = (self._tasks.find(consumer, number) for number in self._topology.consumers_of(edge, producer))
        return [reader for reader in found if reader is not None]

    # --- what the failover rules ask

    def has_started(self, place: Place) -> bool:
        """Whether its current attempt was deployed; of a DataFrame's tasks, which start anew together, is there."""
        subtask = self._tasks.find(*place)
        if subtask is None:
            return False
        return subtask.deployed or (subtask.vertex.is_bound and subtask.attempt is not None)

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
