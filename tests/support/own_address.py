# SPDX-License-Identifier: Apache-2.0
"""An address of this machine that is not loopback's, for what holds off loopback alone."""

from __future__ import annotations

import socket

from penstock.connection.transport import is_loopback


def own_address() -> str:
    """An address of this machine that is not loopback's; empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        found = str(probe.getsockname()[0])
    return "" if is_loopback(found) else found
