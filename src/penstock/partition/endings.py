# SPDX-License-Identifier: Apache-2.0
"""The four ways a partition ends, said once for every kind of partition.

A class that inherits this says in `end` what its end does; how the ends differ is in `lifecycle` and `answers`.
"""

from __future__ import annotations

from penstock.partition.lifecycle import PartitionEvent


class Endings:
    """`release`, `fail`, `expire` and `lose` in terms of one `end`."""

    __slots__ = ()

    def release(self, cause: BaseException | str = "") -> None:
        """Free the data on purpose, as nobody needs it; idempotent."""
        self.end(PartitionEvent.RELEASE, cause)

    def fail(self, cause: BaseException | str) -> None:
        """The producer failed: readers get ProducerFailedError with this cause."""
        self.end(PartitionEvent.FAIL, cause)

    def expire(self, cause: BaseException | str = "") -> None:
        """Its lease ran out."""
        self.end(PartitionEvent.EXPIRE, cause)

    def lose(self, cause: BaseException | str) -> None:
        """Its data is gone against everybody's will."""
        self.end(PartitionEvent.LOSE, cause)

    def end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        """End it with one of the four events; nothing happens when it has ended before."""
        raise NotImplementedError
