# SPDX-License-Identifier: Apache-2.0
"""The first meeting of a task with the driver's Penstock: it compares versions before it unpacks anything of ours.

A plan of the driver's holds objects of its own version; another one may not even be able to unpickle them, and would
fail in words that explain nothing. So plans travel as bytes beside the version that made them. Spark itself compares
the Pythons, and Arrow's format is the same in all versions that Penstock takes.
"""

from __future__ import annotations

import pickle
import socket
import sys
from typing import Any, Generic, TypeVar

from pyspark import cloudpickle

from penstock.errors import VERSION, PenstockError

_T = TypeVar("_T")


class Sent(Generic[_T]):
    """A plan on its way: packed when Spark packs the function that has it, so that broadcast variables are seen."""

    def __init__(self, plan: _T) -> None:
        self.plan = plan

    def __reduce__(self) -> tuple[Any, tuple[str, bytes]]:
        """Two plain values and the function that puts them together."""
        return received, (VERSION, cloudpickle.dumps(self.plan))


def received(theirs: str, plan: bytes) -> Sent[Any]:
    """The plan in a task; raises PenstockError where its Penstock is another one than the driver's."""
    if theirs != VERSION:
        raise PenstockError(
            f"the driver has Penstock {theirs}, and the workers on {socket.gethostname()} have "
            f"{VERSION} ({sys.executable}): install {theirs} there, or send the driver's environment "
            "along with --archives"
        )
    return Sent(pickle.loads(plan))  # noqa: S301 - from the driver, in Spark's own closure
