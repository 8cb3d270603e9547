# SPDX-License-Identifier: Apache-2.0
"""Spark's own errors of DataFrames that jobs read, for actions that are to raise them as they are.

A job says in words why a DataFrame that it read failed: its words name Spark's stage and task, so they tell of which
error they are. The last few errors of accelerated sessions are kept, for an action that failed asks at once.
"""

from __future__ import annotations

from collections import deque

_KEPT = 16
_WORDS = 160

_last: deque[tuple[str, Exception]] = deque(maxlen=_KEPT)


def note(words: str, failure: Exception) -> None:
    """A DataFrame failed so, and the job that read it says these words."""
    _last.append((words[:_WORDS], failure))


def cause_of(words: str) -> Exception | None:
    """Spark's own error of a DataFrame in a failed action's words."""
    return next((failure for said, failure in reversed(_last) if said and said in words), None)
