# SPDX-License-Identifier: Apache-2.0
"""Identities: a partition belongs to one attempt of its producer, so no reader ever mixes attempts.

An identity has parts, and no other module knows how they are written: where one travels or names a file as text, its
own class makes that text and reads it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_DATASET = re.compile(r"(?s:(.+))-(e|result)(0|[1-9][0-9]*)", re.ASCII)
_ENVIRONMENT = re.compile(r"(?s:(.+))-([0-9]+)-([^-]+)", re.ASCII)

Wire = tuple[object, ...]
"""The form of descriptors and ids in a control message: plain tuples of strings, numbers and tuples."""


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One execution attempt of one subtask of one job vertex.

    `attempt` of a subtask counts from 0: the JobMaster numbers its attempts, one at a time. `attempt` of whatever
    Spark starts (a worker, a task that is bound to its subtask, a reader of a result) is Spark's task attempt id,
    so two that live at the same time, as after an executor's death, never share an identity.
    """

    job: str
    vertex: int
    subtask: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}/v{self.vertex}.{self.subtask}#{self.attempt}"

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (self.job, self.vertex, self.subtask, self.attempt)

    @classmethod
    def from_wire(cls, wire: Wire) -> AttemptId:
        """Inverse of `to_wire`; raises ValueError or TypeError on another shape."""
        job, vertex, subtask, attempt = wire
        return cls(str(job), int(vertex), int(subtask), int(attempt))  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True, order=True)
class DatasetId:
    """All partitions of one edge of a job, or, where it `is_result`, those that a vertex gives to the job's result.

    `number` is that of the edge or of the vertex.
    """

    job: str
    number: int
    is_result: bool = False

    def __str__(self) -> str:
        return f"{self.job}-{'result' if self.is_result else 'e'}{self.number}"

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, text: str) -> DatasetId:
        """Inverse of `str`; raises ValueError for what names no dataset."""
        found = _DATASET.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r:.200} names no dataset")
        return cls(found[1], int(found[3]), found[2] == "result")


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """A result partition: its dataset, its index there (the producer's subtask), and the producer's attempt."""

    dataset: DatasetId
    index: int
    attempt: int

    @property
    def job(self) -> str:
        """The job whose partition it is."""
        return self.dataset.job

    def __str__(self) -> str:
        return f"{self.dataset}.{self.index}#{self.attempt}"

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (str(self.dataset), self.index, self.attempt)

    @classmethod
    def from_wire(cls, wire: Wire) -> PartitionId:
        """Inverse of `to_wire`; raises ValueError or TypeError on another shape."""
        dataset, index, attempt = wire
        return cls(DatasetId.of(str(dataset)), int(index), int(attempt))  # type: ignore[call-overload]


def environment_name(host: str, pid: int, token: str) -> str:
    """The name of an environment process; no other one has the same token."""
    return f"{host}-{pid}-{token}"


def host_of(environment: str) -> str:
    """The host of an environment: its name says it. A name that `environment_name` did not make is a host's own."""
    found = _ENVIRONMENT.fullmatch(environment)
    return environment if found is None else found[1]
