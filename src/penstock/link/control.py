# SPDX-License-Identifier: Apache-2.0
"""The control plane's messages as bytes, errors within them, and seals.

Messages are MessagePack dictionaries. Errors travel inside the answer, by type name and text, so that the caller
raises what the callee raised. Nothing here is ever unpickled. The answer to ReadResult may carry a plan, as opaque
bytes that are sealed: whoever made them knows the application's secret, whichever way they came.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, cast

import msgpack

from penstock import errors

_CODE_BYTES = 32
PLAN_PURPOSE = "plan of {job}"
"""The purpose that a plan is sealed for: a task may only work for the job that its plan is of."""

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """Bytes of a control message."""
    return cast("bytes", msgpack.packb(message, use_bin_type=True))


def unpack(data: bytes | memoryview) -> Message:
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


def carried_error(answer: Message) -> errors.PenstockError:
    """The error in an answer, as the type it had."""
    kind = getattr(errors, str(answer.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.PenstockError)):
        kind = errors.ControlError
    error = kind(str(answer.get("text", "no reason given")))
    if answer.get("partition") is not None:
        error.partition = tuple(answer["partition"])
    return error


def raise_for_error(answer: Message) -> Message:
    """The answer, or the error it carries, raised as the type it had."""
    if answer.get("error") is None:
        return answer
    raise carried_error(answer)


def seal(secret: bytes, purpose: str, payload: bytes) -> bytes:
    """The payload behind a code that only a holder of the secret can compute, for this purpose and no other."""
    return _code(secret, purpose, payload) + payload


def unseal(secret: bytes, purpose: str, sealed: bytes) -> bytes:
    """The payload; raises AuthenticationError where nobody who knows the secret sealed it for this purpose."""
    code, payload = sealed[:_CODE_BYTES], sealed[_CODE_BYTES:]
    if not hmac.compare_digest(_code(secret, purpose, payload), code):
        raise errors.AuthenticationError(
            f"the {purpose} was not sealed with the application's secret: somebody changed it on its way"
        )
    return payload


def _code(secret: bytes, purpose: str, payload: bytes) -> bytes:
    name = purpose.encode()
    head = b"penstock-seal-1" + len(name).to_bytes(4, "little") + name
    return hmac.new(secret, head + payload, hashlib.sha256).digest()
