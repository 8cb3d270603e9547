# SPDX-License-Identifier: Apache-2.0
"""The control plane's words: method names, message packing, and the proof of the application's secret.

Control runs over gRPC with MessagePack dictionaries; every call but the two of the handshake carries the
session that the handshake gave. Errors travel inside the answer, by type name and text, so that the caller
raises what the callee raised. Nothing here is ever unpickled; the answer to ReadResult may carry a plan, as opaque
bytes, which a read task unpickles: it comes from a JobMaster that has proved the secret, as Spark's closures do.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any, cast

import msgpack

from penstock.shuffle import errors

SERVICE = "penstock.JobMaster"
SESSION_HEADER = "penstock-session"
NONCE_BYTES = 32

CHALLENGE = "Challenge"
AUTHENTICATE = "Authenticate"
ATTACH_ENVIRONMENT = "AttachEnvironment"
INSTRUCTIONS = "Instructions"
HEARTBEAT = "Heartbeat"
REGISTER_TASK = "RegisterTask"
AWAIT_PRODUCERS = "AwaitProducers"
PARTITION_CONSUMABLE = "PartitionConsumable"
TASK_FINISHED = "TaskFinished"
TASK_LOST = "TaskLost"
OPEN_RESULT = "OpenResult"
READ_RESULT = "ReadResult"

TASK_METHODS = frozenset({REGISTER_TASK, AWAIT_PRODUCERS, TASK_FINISHED, READ_RESULT})
"""What an environment relays for its tasks."""

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """Bytes of a control message."""
    return cast("bytes", msgpack.packb(message, use_bin_type=True))


def unpack(data: bytes) -> Message:
    """The message in these bytes; raises ProtocolError for anything but a dictionary with text keys."""
    try:
        message = msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException, TypeError, RecursionError) as error:
        raise errors.ProtocolError(f"a control message could not be read: {error}") from error
    if not isinstance(message, dict):
        raise errors.ProtocolError(f"a control message is a {type(message).__name__}, not a dictionary")
    return message


def error_message(error: BaseException) -> Message:
    """An error as the answer to a call."""
    message: Message = {"error": type(error).__name__, "text": str(error)}
    partition = getattr(error, "partition", None)
    if partition is not None:
        message["partition"] = partition
    return message


def raise_for_error(answer: Message) -> Message:
    """The answer, or the error it carries, raised as the type it had."""
    name = answer.get("error")
    if name is None:
        return answer
    kind = getattr(errors, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.PenstockError)):
        kind = errors.ControlError
    error = kind(str(answer.get("text", "no reason given")))
    if answer.get("partition") is not None:
        error.partition = tuple(answer["partition"])
    raise error


def nonce() -> bytes:
    """A fresh random challenge."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, role: str, challenge: bytes, other: bytes, identity: str) -> bytes:
    """What only a holder of the secret can compute for this role, these two nonces and this identity."""
    text = b"\x00".join((b"penstock-1", role.encode(), challenge, other, identity.encode()))
    return hmac.new(secret, text, hashlib.sha256).digest()


def proof_matches(expected: bytes, given: bytes) -> bool:
    """Constant-time comparison."""
    return hmac.compare_digest(expected, given)
