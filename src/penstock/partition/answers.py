# SPDX-License-Identifier: Apache-2.0
"""What a reader is told about a partition that has ended: one distinct, picklable error per end."""

from __future__ import annotations

from penstock.partition.lifecycle import PartitionState
from penstock.shuffle.errors import (
    PartitionError,
    PartitionExpiredError,
    PartitionLostError,
    PartitionReleasedError,
    ProducerFailedError,
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
