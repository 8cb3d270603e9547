# SPDX-License-Identifier: Apache-2.0
"""The ends that a partition or its writer brings about, said once for every kind of partition.

A class that inherits this says in `end` what its end does; how the ends differ is in `lifecycle` and `answers`.
"""

from __future__ import annotations

from penstock.partition.lifecycle import PartitionEvent


class Endings:
    """`release` and `fail` in terms of one `end`."""

    __slots__ = ()

    def release(self, cause: BaseException | str = "") -> None:
        """Free the data on purpose, as it is not needed; idempotent."""
        self.end(PartitionEvent.RELEASE, cause)

    def fail(self, cause: BaseException | str) -> None:
        """The producer failed: readers get ProducerFailedError with this cause."""
        self.end(PartitionEvent.FAIL, cause)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it with one of the four events; nothing happens when it has ended before."""
        raise NotImplementedError
