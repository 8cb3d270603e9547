# SPDX-License-Identifier: Apache-2.0
"""Somebody who uses a service while others, or its operator, do what they should not: his rows, time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from penstock.errors import PenstockError
from penstock.testing.conformance_exchange import ConformanceExchange, Producer
from stored_rows import ROWS, rows_left, written

BATCHES = 4
MEMORY, BESIDE = 64, 64
"""MiB: `--memory`, and what a process may take beside that."""


class Witness:
    """One application at a service, whose processes `processes` gives by name."""

    def __init__(self, exchange: ConformanceExchange, processes: Callable[[], dict[str, int]]) -> None:
        self.exchange = exchange
        self.processes = processes
        self.trips: list[float] = []
        self._partitions = 0

    def write(self) -> Producer:
        """A partition that no other one is."""
        self._partitions += 1
        return written(self.exchange, BATCHES, index=self._partitions)

    def read(self, producer: Producer) -> None:
        """Read all rows of a partition; AssertionError for other rows than were written."""
        assert rows_left(self.exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * BATCHES

    def trip(self) -> None:
        """Write and read."""
        began = time.monotonic()
        self.read(self.write())
        self.trips.append(time.monotonic() - began)
        self.hang_up()

    def outcome(self, action: Callable[[], object]) -> PenstockError | None:
        """The error with which this ends, if it is one of ours."""
        try:
            action()
        except PenstockError as error:
            return error
        finally:
            self.hang_up()
        return None

    def hang_up(self) -> None:
        """Close all connections; what was written stays."""
        left = [self.exchange.members, self.exchange._attached]
        for each in chain(*left):
            each.close()
        for those in left:
            those.clear()  # type: ignore[attr-defined]

    def most_memory(self) -> dict[str, int]:
        """The most MiB that each process has had."""
        found = {}
        for name, pid in self.processes().items():
            (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
            found[name] = int(line.split()[1]) >> 10
        return found
