# SPDX-License-Identifier: Apache-2.0
"""Which lazy results can still be read: those that an object of Spark's refers to.

Spark holds a result by its scan, in each plan that a DataFrame, a view or the cache keeps, and by its reader factory,
in the RDDs of what was planned. The JVM's garbage collector knows when these are gone: py4j then forgets our scan,
and a weak reference tells of the factory. Each of them holds one `ResultInUse`; with the last of them it goes, and
the result is released. So nothing is released that a DataFrame, a cached one or an RDD could still read.

A JVM with room does not collect for hours, while results take up disks. So it is told to, when as many results are
held, or as many bytes, as were left the last time and as many again.
"""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

_LOG = logging.getLogger(__name__)

RESULTS = 64
"""So many results are held before the JVM is told to collect its garbage."""
BYTES = 1 << 30
"""Or so many bytes of them."""


class ResultInUse:
    """Lives as long as the result with this name can be read."""

    __slots__ = ("__weakref__", "_uses", "name")

    def __init__(self, name: str, uses: ResultsInUse) -> None:
        self.name = name
        self._uses = uses

    def also_by(self, reader: Any) -> None:
        """This Java object can read it too."""
        self._uses.readers.hold(reader, self)

    def takes(self, size: int) -> None:
        """It was made, and has so many bytes."""
        self._uses.weigh(self.name, size)


class JavaHolders:
    """Keeps Python objects alive as long as Java objects are. Any thread."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._gone = jvm.java.lang.ref.ReferenceQueue()
        self._numbers_in_java = jvm.java.util.concurrent.ConcurrentHashMap()
        self._numbers = itertools.count()
        self._held: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, holder: Any, held: object) -> None:
        """From now on `held` lives as long as the Java object `holder` does."""
        self.look()
        number = next(self._numbers)
        self._held[number] = held
        self._numbers_in_java.put(self._jvm.java.lang.ref.WeakReference(holder, self._gone), number)

    def look(self) -> None:
        """Let go of what Java objects held that are gone by now."""
        while (gone := self._gone.poll()) is not None:
            self._held.pop(self._numbers_in_java.remove(gone), None)


class ResultsInUse:
    """The lazy results of one application. `release` is called once for each, from any thread; it must not block."""

    def __init__(self, jvm: Any, release: Callable[[str], None]) -> None:
        self.readers = JavaHolders(jvm)
        self._jvm = jvm
        self._release = release
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self.results_limit = RESULTS
        """With so many, or so many bytes, it is time to look which are in use no more."""
        self.bytes_limit = BYTES
        self._was_collected = False

    def __len__(self) -> int:
        return len(self._sizes)

    def use(self, name: str) -> ResultInUse:
        """A new result is in use, until what this gives is not referred to any more."""
        used = ResultInUse(name, self)
        self._sizes[name] = 0
        weakref.finalize(used, self._unused, name).atexit = False
        self._collect_if_due()
        return used

    def weigh(self, name: str, size: int) -> None:
        """This result was made and has so many bytes."""
        if name in self._sizes:
            self._sizes[name] = size
        self._collect_if_due()

    def collect(self) -> None:
        """Find what is in use no more: in Python first, whose garbage holds Java's."""
        gc.collect()
        self._jvm.java.lang.System.gc()
        self.readers.look()

    def _unused(self, name: str) -> None:
        # Wherever a garbage collector happens to run: it may hold any lock, so none is taken here.
        self._sizes.pop(name, None)
        self._release(name)

    def _collect_if_due(self) -> None:
        with self._lock:
            results, size = len(self._sizes), sum(list(self._sizes.values()))
            if self._was_collected:
                # Only now, because the JVM tells of what it has found a little later.
                self.results_limit, self.bytes_limit = max(RESULTS, 2 * results), max(BYTES, 2 * size)
                self._was_collected = False
            if results < self.results_limit and size < self.bytes_limit:
                return
            self._was_collected = True
        # On a thread of its own: it takes a quarter of a second, for which no action has to wait.
        threading.Thread(target=self._collect, name="penstock-results", daemon=True).start()

    def _collect(self) -> None:
        try:
            self.collect()
        except Exception as error:  # noqa: BLE001 - the JVM may be gone, and with it all results
            _LOG.debug("results in use could not be looked at: %r", error)
