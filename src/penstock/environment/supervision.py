# SPDX-License-Identifier: Apache-2.0
"""The coroutines of an environment: none ends unnoticed.

A loop that is *kept* runs as long as the environment. If it ends by itself, or raises, the environment must not live
on without it: it is stopped, with the reason. A coroutine that is *run* once tells its failure to a callback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("penstock.environment")

Work = Callable[[], Coroutine[Any, Any, None]]
"""Something that is run when its turn comes; never begun where the environment ends before."""


class Supervisor:
    """The coroutines of one environment. `stop` ends it, for a reason; called as often as there is one."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        self.stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def keep(self, name: str, loop: Work) -> None:
        """Run a loop that must not end."""
        self._start(self._kept(name, loop))

    def run(self, work: Work, failed: Callable[[Exception], None]) -> None:
        """Run something to its end; `failed` gets what it raises."""
        self._start(self._once(work, failed))

    async def close(self) -> None:
        """Cancel everything, wait for that, and take nothing more; idempotent."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_closed:
            task.cancel()

    async def _kept(self, name: str, loop: Work) -> None:
        try:
            await loop()
        except Exception as error:
            log.exception("the environment can't go on without its %s", name)
            self.stop(f"its {name} failed: {error!r}")
        else:
            self.stop(f"its {name} ended")

    async def _once(self, work: Work, failed: Callable[[Exception], None]) -> None:
        try:
            await work()
        except Exception as error:
            log.exception("work of the environment failed")
            failed(error)
