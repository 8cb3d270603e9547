# SPDX-License-Identifier: Apache-2.0
"""Lookers at the actions of PySpark's DataFrames: each action of a session that has a looker goes through it.

PySpark has no hook for actions, so while there is such a session the methods of its class DataFrame that run a query
are ours, and call PySpark's own, as they were. Methods of other sessions go straight there. What an action calls
itself (`toPandas` collects, `first` takes) is one action. When the last looker goes, the methods are PySpark's again.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

Run = Callable[[DataFrame], Any]
Around = Callable[[DataFrame, str, "int | None", Run], Any]
"""Is given the frame, the action's name, how many rows are enough if that is known, and what runs the action."""

_ACTIONS = (
    "collect",
    "count",
    "toLocalIterator",
    "tail",
    "isEmpty",
    "foreach",
    "foreachPartition",
    "checkpoint",
    "localCheckpoint",
    "toArrow",
    "toPandas",
    "writeTo",
)
"""`take`, `first` and `head` collect a frame with a limit; `show` and `write` are below."""

_own: dict[str, Any] = {}
"""PySpark's methods, while ours are in their place."""
_lookers: weakref.WeakKeyDictionary[SparkSession, Around] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class _Thread(threading.local):
    """Whether this thread is in an action already."""

    inside = False


_thread = _Thread()


def look(spark: SparkSession, around: Around) -> None:
    """From now on all actions of the session go through this one."""
    with _lock:
        _lookers[spark] = around
        if not _own:
            _install()


def look_no_more(spark: SparkSession) -> None:
    """Actions of the session are PySpark's again; idempotent."""
    with _lock:
        _lookers.pop(spark, None)
        if not _lookers and _own:
            _remove()


def looker(spark: SparkSession) -> Around | None:
    """The looker of the session, if it has one."""
    return _lookers.get(spark)


@contextmanager
def unseen() -> Iterator[None]:
    """Actions of this thread pass the looker by in here."""
    before, _thread.inside = _thread.inside, True
    try:
        yield
    finally:
        _thread.inside = before


def _install() -> None:
    methods = {name: _action(name, getattr(DataFrame, name)) for name in _ACTIONS}
    methods["_show_string"] = _action("show", DataFrame._show_string)  # noqa: SLF001 - what `show` prints
    methods["write"] = property(_action("write", DataFrame.write.fget))
    for name, method in methods.items():
        _own[name] = DataFrame.__dict__[name]
        setattr(DataFrame, name, method)


def _remove() -> None:
    for name, method in _own.items():
        setattr(DataFrame, name, method)
    _own.clear()


def _action(name: str, own: Any) -> Any:
    @functools.wraps(own)
    def action(self: DataFrame, *args: Any, **kwargs: Any) -> Any:
        around = None if _thread.inside else _lookers.get(self.sparkSession)
        if around is None:
            return own(self, *args, **kwargs)
        with unseen():
            return around(self, name, _enough(name, args, kwargs), lambda frame: own(frame, *args, **kwargs))

    return action


def _enough(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The rows that an action asks for, where it does not say so by a limit in its plan."""
    if name == "isEmpty":
        return 1
    if name != "show":
        return None
    shown = args[0] if args else kwargs.get("n", 20)
    return shown + 1 if isinstance(shown, int) and shown >= 0 else None
