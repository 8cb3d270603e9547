# SPDX-License-Identifier: Apache-2.0
"""Operators that work batch by batch, one after the other, as one loop.

As generators in each other, each would take some of Python's frames, of which there are a thousand: a program that
adds columns in a loop has hundreds of operators in a stage. Here a list holds what each of them still has to give.
A batch goes through all of them before the next one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import pyarrow as pa

from penstock.graph import Operator
from penstock.operators.batch_by_batch import BatchByBatch
from penstock.task.failure import Blame
from penstock.task.operator_clock import OperatorClock


def groups(operators: Iterable[Operator]) -> Iterator[Operator | list[BatchByBatch]]:
    """The operators in order: those that follow each other and work batch by batch together, all others alone."""
    loop: list[BatchByBatch] = []
    for operator in operators:
        if isinstance(operator, BatchByBatch):
            loop.append(operator)
            continue
        if loop:
            yield loop
            loop = []
        yield operator
    if loop:
        yield loop


class BatchLoop:
    """Some operators of a task that is at `place`, with the time and the faults of each; `breathe` between them."""

    def __init__(
        self,
        operators: Sequence[BatchByBatch],
        place: str,
        clock: OperatorClock,
        blame: Blame,
        breathe: Callable[[], None],
    ) -> None:
        self._names = [operator.name for operator in operators]
        self._each = [operator.each() for operator in operators]
        self._parts = [clock.part(name) for name in self._names]
        self._place = place
        self._clock = clock
        self._blame = blame
        self._breathe = breathe

    def batches(self, given: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """The rows that come out of the last one."""
        for batch in given:
            yield from self._through(batch)

    def _through(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        waiting = [self._each[0](batch)]
        while waiting:
            made = self._next(waiting)
            if made is None:
                waiting.pop()
            elif len(waiting) == len(self._each):
                yield made
            else:
                self._breathe()
                waiting.append(self._each[len(waiting)](made))

    def _next(self, waiting: list[Iterator[pa.RecordBatch]]) -> pa.RecordBatch | None:
        number = len(waiting) - 1
        former = self._clock.switch(self._parts[number])
        try:
            return next(waiting[number], None)
        except BaseException as error:
            self._blame.note(error, self._names[number], self._place)
            raise
        finally:
            self._clock.switch(former)
