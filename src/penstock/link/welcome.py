# SPDX-License-Identifier: Apache-2.0
"""The first words between a task and its environment process: mutual proof, then the welcome with the memory."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from penstock.connection.frames import HEADER, check, frame, read_beginning
from penstock.connection.handshake import Handshake
from penstock.errors import AuthenticationError, EnvironmentLostError, ProtocolError
from penstock.link.control import pack, unpack
from penstock.link.frames import LinkFrameType
from penstock.link.wire import from_wire, to_wire


@dataclass(frozen=True, slots=True)
class Welcome:
    """The words of the environment to a task it has accepted; the memory's descriptor comes with it.

    `address` is where other environments read this one's partitions.
    """

    environment: str
    address: str
    segments: int
    segment_size: int


def welcome_frame(welcome: Welcome) -> bytes:
    """The first frame on the connection, sent with a copy of the memory's descriptor."""
    return frame(LinkFrameType.WELCOME, pack(to_wire(welcome)))


def enter(connection: socket.socket, handshake: Handshake, patience: float) -> tuple[Welcome, int]:
    """Prove and be proven to, and receive the welcome; the memory's descriptor is the caller's to close.

    `patience` is in seconds, for each word of the environment. Raises AuthenticationError, EnvironmentLostError or
    ProtocolError.
    """
    connection.settimeout(patience)
    try:
        connection.sendall(handshake.outgoing())
        while not handshake.is_done:
            handshake.feed(connection.recv(handshake.missing))
            connection.sendall(handshake.outgoing())
        found = _receive_welcome(connection)
        connection.settimeout(None)
        return found
    except ConnectionResetError as error:
        raise AuthenticationError(f"the environment at {handshake.peer} closed the connection") from error
    except OSError as error:
        raise EnvironmentLostError(f"the environment at {handshake.peer} does not answer: {error}") from error


def _receive_welcome(connection: socket.socket) -> tuple[Welcome, int]:
    head, descriptors, _, _ = socket.recv_fds(connection, HEADER.size, 1)
    try:
        if len(head) != HEADER.size or len(descriptors) != 1:
            raise EnvironmentLostError("the environment closed the connection before its welcome")
        length, kind, _, seal = read_beginning(head)
        if kind != LinkFrameType.WELCOME:
            raise ProtocolError(f"a frame of type {kind} and {length} bytes where the welcome was expected")
        body = connection.recv(length - HEADER.size, socket.MSG_WAITALL)
        if len(body) != length - HEADER.size:
            raise EnvironmentLostError("the environment closed the connection within its welcome")
        check(seal, body)
        return from_wire(Welcome, unpack(body)), descriptors[0]
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
