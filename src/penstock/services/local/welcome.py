# SPDX-License-Identifier: Apache-2.0
"""The first words between a task and its environment process: mutual proof, then the welcome with the memory."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from penstock.network.attachment import FRAME_LIMIT, HEADER, FrameType
from penstock.network.handshake import Handshake, Role
from penstock.services.local.launch import EnvironmentLaunch
from penstock.shuffle.control import unpack
from penstock.shuffle.errors import AuthenticationError, EnvironmentLostError, ProtocolError
from penstock.shuffle.ids import AttemptId

_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the environment tells a task it has accepted. The descriptor is the receiver's to close."""

    environment: str
    address: str
    segments: int
    segment_size: int
    memory_fd: int


def authenticate(connection: socket.socket, launch: EnvironmentLaunch, attempt: AttemptId | None) -> Welcome:
    """Prove and be proven to, and receive the welcome; raises AuthenticationError or EnvironmentLostError."""
    connection.settimeout(_PATIENCE_SECONDS)
    try:
        identity = f"pid {os.getpid()} attempt {attempt if attempt is not None else 'none'}"[:120]
        handshake = Handshake(Role.CLIENT, launch.secret, identity, str(launch.place().socket))
        while True:
            connection.sendall(handshake.outgoing())
            if handshake.is_done:
                break
            message = _exactly(connection, handshake.needed)
            if message is None:
                raise handshake.closed()
            handshake.receive(message)
        welcome = _receive_welcome(connection)
        connection.settimeout(None)
        return welcome
    except OSError as error:
        if isinstance(error, ConnectionResetError):
            raise AuthenticationError(f"the environment at {launch.place().socket} closed the connection") from error
        raise EnvironmentLostError(f"the environment at {launch.place().socket} does not answer: {error}") from error


def _receive_welcome(connection: socket.socket) -> Welcome:
    head, descriptors, _, _ = socket.recv_fds(connection, HEADER.size, 1)
    if len(head) != HEADER.size or len(descriptors) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EnvironmentLostError("the environment closed the connection before its welcome")
    try:
        length, kind = HEADER.unpack(head)
        if kind != FrameType.WELCOME or not HEADER.size < length <= FRAME_LIMIT:
            raise ProtocolError(f"a frame of type {kind} and {length} bytes where the welcome was expected")
        body = _exactly(connection, length - HEADER.size)
        if body is None:
            raise EnvironmentLostError("the environment closed the connection within its welcome")
        message = unpack(body)
        return Welcome(
            str(message["environment"]),
            str(message["address"]),
            int(message["segments"]),
            int(message["segment_size"]),
            descriptors[0],
        )
    except BaseException:
        os.close(descriptors[0])
        raise


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
