# SPDX-License-Identifier: Apache-2.0
"""Asks whether somebody still listens at an address: this tells a process that is gone from a broken connection."""

from __future__ import annotations

import asyncio

_CONNECT_SECONDS = 2.0


async def nobody_listens(address: str) -> bool:
    """Tell whether the host at `host:port` (or `tcp://host:port`) says that no process listens there.

    False where somebody does, and where nobody can tell: the host does not answer, or can't be found.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    writer.transport.abort()
    return False
