# SPDX-License-Identifier: Apache-2.0
"""Tries again what a file system failed to do: its errors say nothing of the files.

A mount that drops for a moment, a process with too many open files, a disk that answers late: all of them raise
OSError for files that are well. So whatever reads a location tries again a few times, after waits that grow, before
it says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

_T = TypeVar("_T")

FEW: Final = (0.1, 0.4, 1.5)
"""Seconds between the tries of work that a user waits for."""
MANY: Final = tuple(0.1 * 2**n for n in range(10))
"""Seconds between the tries of work without which the query can't go on: 102 s in all."""


def patiently(work: Callable[[], _T], waits: Sequence[float]) -> _T:
    """The result of `work`; raises its last OSError if every try had one, and other errors at once."""
    for wait in waits:
        try:
            return work()
        except OSError:
            time.sleep(wait)
    return work()
