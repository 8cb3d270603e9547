# SPDX-License-Identifier: Apache-2.0
"""Which subtasks run again after a failure; `graph.failover` has the rules for rows that are gone. Questions only.

- A producer that ran again and finished with another fingerprint than before gave other rows, so the readers of the
  earlier ones run again, ended or not, and their readers too. The fingerprint covers rows, bytes and
  checksum of every subpartition; rows that only come in another order, or in other batches, count as others too.
- A subtask that has ended on the rows of an attempt that never reported its end, which a hybrid edge allows, or that
  ended early because its rows were not wanted, is run again with it: the next attempt may give other rows.
- A region that runs together needs its slots at the same time, any other one at least one. If readers that wait for
  it hold them, these are taken off and run again too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from penstock.graph.failover import Place, downstream_of, restart_set
from penstock.graph.job_graph import RESULT_EDGE
from penstock.graph.regions import Region
from penstock.job.core.execution.progress import Roll
from penstock.job.core.execution.stages import Stages
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.execution.topology import JobTopology
from penstock.shuffle import PartitionId


class Tracked(Protocol):
    """Which partitions are there."""

    def knows(self, partition: PartitionId) -> bool:
        """Tell whether a partition was registered, and neither released nor lost."""


class LoneBeginnings(Protocol):
    """The state that tasks of a streaming query may begin anew with."""

    def may_begin_alone(self, places: Collection[Place]) -> bool:
        """Tell whether these tasks may begin anew while all others go on."""


class RestartSets:
    """Answers for one job. It is the `JobView` of the failover rules."""

    def __init__(
        self, topology: JobTopology, stages: Stages, subtasks: Roll, tracked: Tracked, beginning: LoneBeginnings
    ) -> None:
        self._beginning = beginning
        self._topology = topology
        self._stages = stages
        self._subtasks = subtasks
        self._tracked = tracked

    def after(self, failed: Iterable[Place], *, whole: bool = False) -> frozenset[Place]:
        """The subtasks that run again when these have failed; of a streaming query all, from its last checkpoint.

        Of one whose tasks begin anew alone, these, unless the `whole` query is to begin anew.
        """
        found = frozenset(failed)
        if self._topology.graph.streaming is not None:
            if not whole and self._beginning.may_begin_alone(found):
                return found
            vertices = self._topology.graph.vertices
            return frozenset(subtask.place for vertex in vertices for subtask in self._subtasks.of(vertex.id))
        while True:
            grown = restart_set(self._topology.graph, found, self)
            grown |= self._unconfirmed_readers(grown)
            if grown == found:
                grown |= self.in_the_way(grown)
            if grown == found:
                return found
            found = grown

    def alone(self, places: frozenset[Place]) -> frozenset[Place]:
        """Those of these places, if they are of a query whose other tasks go on meanwhile."""
        streaming = self._topology.graph.streaming
        tasks = sum(vertex.parallelism for vertex in self._topology.graph.vertices)
        return places if streaming is not None and len(places) < tasks else frozenset()

    @property
    def never_began(self) -> bool:
        """Tell whether this is a streaming query of which nothing has run yet."""
        return self._topology.graph.streaming is not None and not self._subtasks.has_run

    def misled(self, producer: Place, edges: Iterable[int]) -> frozenset[Place]:
        """The readers, direct or not, of other rows from an earlier attempt of a subtask that has ended now."""
        subtask = self._subtasks.find(*producer)
        born = subtask.born if subtask is not None else 0
        readers = {
            reader.place
            for edge in edges
            for reader in self._readers(edge, producer[1])
            if reader.deployed and reader.round < born
        }
        return self._with_followers(readers)

    def withdrawn(self) -> Iterable[tuple[int, list[Place]]]:
        """Subtasks that wait for their deployment and may not start now: the vertices, and these subtasks of them."""
        for region in self._stages.regions:
            if self._stages.may_start(region):
                continue
            for vertex in region.vertices:
                is_bound = self._topology.graph.vertex(vertex).is_bound
                if not (is_bound and self._is_begun(vertex)):
                    # A DataFrame's tasks can't be told to begin anew one by one.
                    yield vertex, [s.place for s in self._subtasks.of(vertex) if s.call is not None]

    def _unconfirmed_readers(self, found: Iterable[Place]) -> frozenset[Place]:
        """The subtasks that have ended on rows of an attempt that is withdrawn before it reported its end."""
        readers: set[Place] = set()
        for vertex, index in found:
            subtask = self._subtasks.find(vertex, index)
            if subtask is None or (subtask.is_finished and not subtask.is_unwanted):
                continue
            for edge in subtask.consumable - {RESULT_EDGE}:
                if self._topology.graph.edge(edge).kind.is_hybrid:
                    ended = [reader for reader in self._readers(edge, index) if reader.is_finished]
                    readers |= {reader.place for reader in ended if reader.round >= subtask.born}
        return self._with_followers(readers)

    def in_the_way(self, found: frozenset[Place] = frozenset()) -> set[Place]:
        """Readers that hold slots which a region needs that they wait for, once these begin anew too.

        A region that runs together needs a slot for each of its tasks that have not ended, another one at least one.
        So does one whose DataFrame's tasks have ended, if slots went: Spark may run one of them again before their
        Spark job returns, which readers wait for. The DataFrame is read anew with them then.
        """
        taken: set[Place] = set()
        for region in self._stages.regions:
            subtasks = [subtask for vertex in region.vertices for subtask in self._subtasks.of(vertex)]
            is_unread = self._is_unread(region)
            if not is_unread and all(subtask.deployed and subtask.place not in found for subtask in subtasks):
                continue
            needed = is_unread + sum(1 for subtask in subtasks if not subtask.is_finished or subtask.place in found)
            waiting = set(self._waiting_behind(region, found)) - found
            if (needed if region.at_once else 1) + len(waiting) > self._stages.capacity.total:
                taken |= waiting
                taken |= {subtask.place for subtask in subtasks} - found if is_unread else set()
        return taken

    def _is_unread(self, region: Region) -> bool:
        """Tell whether slots went, and the Spark job of a DataFrame has not returned whose tasks have all ended."""
        capacity, graph = self._stages.capacity, self._topology.graph
        ended = (v for v in region.vertices if graph.vertex(v).is_bound and self._subtasks.is_complete(v))
        return capacity.total < capacity.most and not all(self._subtasks.is_confirmed(v) for v in ended)

    def _waiting_behind(self, region: Region, withdrawn: Collection[Place]) -> list[Place]:
        """The holders of slots after the region that read what has not ended of it, is `withdrawn`, or waits."""
        behind, stopped = self._stages.behind(region), {vertex for vertex, _ in withdrawn}
        stopped |= {v for v in region.vertices if not self._subtasks.is_complete(v) or self._is_unread(region)}
        waiting: set[int] = set()
        while more := {vertex for vertex in behind if vertex not in waiting and self._waits(vertex, stopped)}:
            waiting |= more
            stopped |= {vertex for vertex in more if not self._subtasks.is_complete(vertex)}
        return [s.place for vertex in behind if vertex in waiting for s in self._subtasks.of(vertex) if s.is_live]

    def _waits(self, vertex: int, stopped: Collection[int]) -> bool:
        """Tell whether a vertex reads a producer that does not run."""
        producers = [edge.producer for edge in self._topology.graph.inputs_of(vertex)]
        return any(producer in stopped or self._subtasks.undeployed(producer) for producer in producers)

    def _with_followers(self, readers: set[Place]) -> frozenset[Place]:
        found = frozenset(readers)
        return found | downstream_of(self._topology.graph, found, self) if found else found

    def _readers(self, edge: int, producer: int) -> list[Subtask]:
        consumer = self._topology.graph.edge(edge).consumer
        if not self._is_begun(consumer):
            return []
        found = (self._subtasks.find(consumer, number) for number in self._topology.consumers_of(edge, producer))
        return [reader for reader in found if reader is not None]

    def _is_begun(self, vertex: int) -> bool:
        """Tell whether any subtask of a vertex runs or has ended well."""
        return self._subtasks.undeployed(vertex) < self._topology.graph.vertex(vertex).parallelism

    # --- what the failover rules ask

    def has_started(self, place: Place) -> bool:
        """Tell whether its current attempt was deployed, or is there, if the tasks of a DataFrame start together."""
        subtask = self._subtasks.find(*place)
        if subtask is None:
            return False
        return subtask.deployed or (subtask.vertex.is_bound and subtask.attempt is not None)

    def has_finished(self, place: Place) -> bool:
        """Tell whether its current attempt ended well."""
        subtask = self._subtasks.find(*place)
        return subtask is not None and subtask.is_finished

    def was_announced(self, edge: int, producer: int) -> bool:
        """Tell whether consumers know the current attempt's partition."""
        subtask = self._subtasks.find(self._topology.graph.edge(edge).producer, producer)
        return subtask is not None and (edge in subtask.consumable or subtask.empty)

    def is_available(self, edge: int, producer: int) -> bool:
        """Tell whether the current attempt's partition can be read from its beginning."""
        description = self._topology.graph.edge(edge)
        subtask = self._subtasks.find(description.producer, producer)
        if subtask is None or subtask.empty:
            return subtask is not None
        descriptor = subtask.outputs.get(edge)
        if descriptor is None or subtask.is_unwanted or not self._tracked.knows(descriptor.partition):
            return False
        if description.kind.is_hybrid and not description.kind.is_kept:
            return not subtask.is_ended and edge not in subtask.consumable
        if description.kind.is_hybrid:
            return subtask.is_finished or subtask.is_live
        return subtask.is_finished
