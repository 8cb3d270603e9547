# SPDX-License-Identifier: Apache-2.0
"""The control plane's messages as bytes, errors within them, and seals.

Messages are MessagePack dictionaries. Errors travel inside the answer, by type name and text, so that the caller
raises what the callee raised. Nothing here is ever unpickled. The answer to ReadResult may carry a plan, as opaque
bytes that are sealed: their maker knows the application's secret, whichever way they came.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sized
from typing import Any, TypeVar, cast

import msgpack

from penstock import errors

_CODE_BYTES = 32
PLAN_PURPOSE = "plan of {job}"
"""The purpose that a plan is sealed for: a task may only work for the job that its plan is of."""

Message = dict[str, Any]
S = TypeVar("S", bound=Sized)


def pack(message: Message) -> bytes:
    """Bytes of a control message."""
    return cast("bytes", msgpack.packb(message, use_bin_type=True))


def unpack(data: bytes | memoryview, most: int | None = None) -> Message:
    """The message in these bytes; raises ProtocolError for anything but a dictionary with text keys.

    With `most` it has no more values, in all its lists and dictionaries, each of which is one more: QuotaError before
    there are more. A byte of a message may be a value that takes a hundred.
    """
    limits: dict[str, Any] = {}
    if most is not None:
        count = _counted(most)
        limits = {"list_hook": count, "object_hook": count, "max_array_len": most, "max_map_len": most}
    try:
        message = msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=True, **limits)
    except (ValueError, msgpack.exceptions.UnpackException, TypeError, RecursionError) as error:
        if most is not None and "exceeds max_" in str(error):
            raise _too_many(most) from error
        raise errors.ProtocolError(f"a control message could not be read: {error}") from error
    if not isinstance(message, dict):
        raise errors.ProtocolError(f"a control message is a {type(message).__name__}, not a dictionary")
    return message


def _counted(most: int) -> Callable[[S], S]:
    """A look at each list and dictionary of a message; QuotaError once they have more values than that."""
    left = most

    def count(values: S) -> S:
        nonlocal left
        left -= 1 + len(values)
        if left < 0:
            raise _too_many(most)
        return values

    return count


def _too_many(most: int) -> errors.QuotaError:
    return errors.QuotaError(f"a question has more than {most:,} values: ask about fewer at once, again and again")


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
    """The payload; raises AuthenticationError where no holder of the secret sealed it for this purpose."""
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
