# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C stops our jobs: in a script, in a shell and in a notebook.

An action waits in the JVM while its job runs on threads of our own, and of a Ctrl-C only the main thread hears. In a
script and in the shell PySpark's handler cancels Spark's jobs, which kills Python workers some seconds later, and
jobs that wait for slots have none. In a notebook there is not even that: IPython puts its own handler in place for
every cell. So ours goes before whatever handler there is, and before each cell of a notebook again.

Limits: as PySpark's own handler does, it stops all jobs of the application, also those of other threads. An action
that the JVM still plans has no job yet: its job starts all the same, as with PySpark alone.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

CAUSE = "interrupted by Ctrl-C"

_listeners: dict[int, Callable[[str], None]] = {}
"""The listeners that are told of a Ctrl-C, by the application; written by `on_interrupt` only."""
_notebooks: list[object] = []
"""The shells of IPython that call us before each cell: the one there is, or none."""


def on_interrupt(application: int, stop: Callable[[str], None]) -> None:
    """From now on call `stop`, which must not block, at every Ctrl-C.

    Another thread than the main one cannot see to it; then it begins when the main thread comes here.
    """
    _listeners[application] = stop
    _install()
    shell = _notebook()
    if shell is not None and shell not in _notebooks:
        _notebooks.append(shell)
        shell.events.register("pre_run_cell", _install)


def forget(application: int) -> None:
    """Do not call it any more; idempotent. Our handler stays, and only passes on what it hears."""
    _listeners.pop(application, None)


def _install(*_: object) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    present = signal.getsignal(signal.SIGINT)
    if callable(present) and not isinstance(present, _Handler):
        signal.signal(signal.SIGINT, _Handler(present))


class _Handler:
    """Tells the listeners, then does what was done before us."""

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        for stop in list(_listeners.values()):
            stop(CAUSE)
        return self._before(number, frame)


def _notebook() -> Any:
    """IPython's shell, if we are in one; IPython is not imported for it."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()
