# SPDX-License-Identifier: Apache-2.0
"""The limits of the system for this process: raised as far as they may be, because it serves many workers.

An environment is started by the first worker of its host, and has that worker's limits: of the address space, where
`spark.executor.pyspark.memory` is set, and of open files. A limit that stays is said in the log; where it leaves too
little address space the environment does not start, instead of failing tasks later for want of a few megabytes.
"""

from __future__ import annotations

import logging
import resource
from pathlib import Path

from penstock.errors import SettingError

log = logging.getLogger("penstock.environment")

_FILES = 1 << 20
"""Open files that are asked for at most."""
_ROOM = 192 << 20
"""Address space beside the network memory: stacks of threads, what is gathered, what Arrow asks for."""


def lift_limits() -> None:
    """Raise the limits of address space and open files: beyond the hard limit where it is allowed, else up to it."""
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        if not _try(kind, resource.RLIM_INFINITY, resource.RLIM_INFINITY):
            hard = resource.getrlimit(kind)[1]
            _try(kind, hard, hard)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        _try(resource.RLIMIT_NOFILE, wanted, hard)
    space, files = resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if space != resource.RLIM_INFINITY:
        log.warning("the address space is limited to %d MB, and the limit can't be raised", space >> 20)
    log.info("at most %d open files", files)


def refuse_too_little_space(memory: int) -> None:
    """Raise SettingError where the address space has no room for so many bytes of network memory."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit - used < memory + _ROOM:
        raise SettingError(
            f"the environment process may use {limit >> 20} MB of address space (RLIMIT_AS), of which it has"
            f" {used >> 20} MB: too little for {memory >> 20} MB of network memory and {_ROOM >> 20} MB to work in."
            " It has the limit of the worker that started it, which may not raise it: raise or unset"
            " spark.executor.pyspark.memory, or lower spark.penstock.network.memory"
        )


def _try(kind: int, soft: int, hard: int) -> bool:
    try:
        resource.setrlimit(kind, (soft, hard))
    except (ValueError, OSError):
        return False
    return True
