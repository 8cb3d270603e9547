# SPDX-License-Identifier: Apache-2.0
"""The errors that a reader gets: a distinct, picklable one for each end of a partition, and one for a wrong range."""

from __future__ import annotations

from penstock.errors import (
    PartitionError,
    PartitionExpiredError,
    PartitionLostError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
)
from penstock.partition.lifecycle import PartitionState


def check_range(name: object, first: int, count: int, subpartitions: int) -> None:
    """Raise ProtocolError unless `count` subpartitions from `first` on exist, and there is at least one."""
    if first < 0 or count < 1 or first + count > subpartitions:
        raise ProtocolError(
            f"partition {name} has no subpartitions {first} to {first + count - 1}: it has {subpartitions}"
        )


def describe(cause: BaseException | str) -> str:
    """The text of a cause: an error's type and message, or the text itself."""
    if isinstance(cause, str):
        return cause
    if isinstance(cause, ProducerFailedError):
        return str(cause)
    text = str(cause)
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def end_error(name: object, state: PartitionState, cause: BaseException | str = "", host: str = "") -> PartitionError:
    """The error for a partition that ended in `state`; says where and, where known, why."""
    where = f" on {host}" if host else ""
    text = describe(cause)
    why = f": {text}" if text else ""
    if state is PartitionState.FAILED:
        return ProducerFailedError(f"the producer of partition {name}{where} failed{why}")
    if state is PartitionState.LOST:
        return PartitionLostError(f"partition {name}{where} is lost{why}")
    if state is PartitionState.EXPIRED:
        return PartitionExpiredError(f"partition {name}{where} has expired, nobody renewed its lease{why}")
    return PartitionReleasedError(f"partition {name}{where} was released{why or ': it can be read no more'}")
