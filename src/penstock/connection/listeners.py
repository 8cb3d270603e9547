# SPDX-License-Identifier: Apache-2.0
"""Asks whether a process still listens at an address: this tells a process that is gone from a broken connection."""

from __future__ import annotations

from penstock.connection.transport import Transport
from penstock.errors import SettingError

_CONNECT_SECONDS = 2.0


async def nobody_listens(transport: Transport, address: str) -> bool:
    """Tell whether the host says that no process listens at this address.

    False where one does, and where that stays unknown: the host does not answer, or can't be found.
    """
    try:
        (await transport.connect(address, _CONNECT_SECONDS)).close()
    except ConnectionRefusedError:
        return True
    except (OSError, SettingError):
        return False
    return False
