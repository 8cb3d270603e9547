# SPDX-License-Identifier: Apache-2.0
"""What a read task asks about its partition of a result, what it is told, which runs a Spark stage has read. Pure.

A result that is made again may hold its rows in another order, and, where its plan deals rows out by the order in
which they come, in other partitions. One Spark stage reads a DataFrame once, so all that its tasks read should be of
one run. Kept per result: for each of the last stages that read it, a bit per partition and run. Limit: of more stages
than that at the same time, the ones that began first are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.shuffle import PartitionId, ShuffleDescriptor
from penstock.shuffle.control import Message

_STAGES = 256


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A task of a Spark stage (negative: not known) is going to read the partition at `index` of a result.

    `partition` is the one it knows of. `lost` says why it could not read that one; `lent` is the job that it has lent
    its slot to and that has let it go.
    """

    result: str
    index: int
    partition: PartitionId
    stage: int = -1
    lost: str = ""
    lent: str = ""

    @property
    def job(self) -> str:
        """The job that made the partition."""
        return self.partition.dataset.rpartition("-")[0]

    def to_wire(self) -> Message:
        """As a control message."""
        return {
            "result": self.result,
            "index": self.index,
            "partition": self.partition.to_wire(),
            "stage": self.stage,
            "lost": self.lost,
            "lent": self.lent,
        }

    @classmethod
    def from_wire(cls, wire: Message) -> ReadRequest:
        """Inverse of `to_wire`; raises KeyError, TypeError or ValueError on another shape."""
        partition = PartitionId.from_wire(tuple(wire["partition"]))
        lost, lent = str(wire.get("lost") or ""), str(wire.get("lent") or "")
        return cls(str(wire["result"]), int(wire["index"]), partition, int(wire["stage"]), lost, lent)


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What to do: read `partition`, or else work for `job` with this `plan`, or else `ask_again` at once.

    None of them: there is no other partition than the one that the task knows.
    """

    partition: ShuffleDescriptor | None = None
    job: str = ""
    plan: bytes = b""
    ask_again: bool = False

    def to_wire(self) -> Message:
        """As a control message."""
        partition = None if self.partition is None else self.partition.to_wire()
        return {"partition": partition, "job": self.job, "plan": self.plan, "ask_again": self.ask_again}

    @classmethod
    def from_wire(cls, wire: Message) -> ReadAnswer:
        """Inverse of `to_wire`."""
        partition = wire.get("partition")
        descriptor = None if partition is None else ShuffleDescriptor.from_wire(tuple(partition))
        return cls(descriptor, str(wire["job"]), bytes(wire["plan"]), bool(wire["ask_again"]))


class StageReads:
    """Which partitions of which run each Spark stage has read of one result."""

    def __init__(self) -> None:
        self._stages: dict[int, dict[str, int]] = {}

    def note(self, request: ReadRequest, job: str) -> None:
        """It is told to read its partition of the run that this job was."""
        if request.stage < 0:
            return
        runs = self._stages.setdefault(request.stage, {})
        for other in runs:
            runs[other] &= ~(1 << request.index)
        runs[job] = runs.get(job, 0) | 1 << request.index
        while len(self._stages) > _STAGES:
            del self._stages[next(iter(self._stages))]

    def undo(self, request: ReadRequest) -> None:
        """It could not, so nothing of that partition has been read."""
        runs = self._stages.get(request.stage, {})
        runs[request.job] = runs.get(request.job, 0) & ~(1 << request.index)

    def has_read_another(self, request: ReadRequest, job: str) -> bool:
        """Whether other tasks of its stage were told to read another run than this job."""
        others = ~(1 << request.index)
        runs = self._stages.get(request.stage, {})
        return any(bits & others for run, bits in runs.items() if run != job)
