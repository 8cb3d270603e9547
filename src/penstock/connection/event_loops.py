# SPDX-License-Identifier: Apache-2.0
"""The event loop of a process that moves rows: uvloop's where it is installed, else asyncio's.

Only processes of our own use it: the environment and the services. A task and a client are others' processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

A = TypeVar("A")


def run(main: Coroutine[Any, Any, A]) -> A:
    """Run this to its end, as `asyncio.run` does, and give what it gives."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    found: A = uvloop.run(main)
    return found
