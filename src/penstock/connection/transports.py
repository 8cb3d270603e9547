# SPDX-License-Identifier: Apache-2.0
"""Finds a transport by its entry-point name or by `module:attribute`, as shuffle services are found."""

from __future__ import annotations

from typing import cast

from penstock.connection.sockets import TcpTransport
from penstock.connection.transport import Transport
from penstock.shuffle.registry import plug_in

GROUP = "penstock.transports"


def load_transport(name: str, socket_buffer: int = 0) -> Transport:
    """A transport of this name; raises SettingError naming what was found instead.

    `socket_buffer` is for TCP; a plug-in has settings of its own.
    """
    if name == TcpTransport.scheme:  # no list of installed packages is read for the usual one
        return TcpTransport(socket_buffer)
    return cast("Transport", plug_in("transport", GROUP, name, "scheme"))
