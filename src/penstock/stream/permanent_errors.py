# SPDX-License-Identifier: Apache-2.0
"""Errors of clients of which the client says that another try meets them again: not authorised, no such thing.

Each says it in its own way: `retriable` of kafka-python, names of confluent-kafka's and gRPC's codes, the statuses of
HTTP out of botocore, Azure, Google and aiohttp. The rules are those by which the clients themselves try again. An
error that says nothing is taken as one that passes.
"""

from __future__ import annotations

from typing import Any, Final

_OF_KAFKA: Final = frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "ILLEGAL_SASL_STATE",
        "INVALID_CONFIG",
        "INVALID_GROUP_ID",
        "INVALID_MSG_SIZE",
        "INVALID_RECORD",
        "INVALID_REQUIRED_ACKS",
        "INVALID_TIMESTAMP",
        "INVALID_TRANSACTION_TIMEOUT",
        "MSG_SIZE_TOO_LARGE",
        "POLICY_VIOLATION",
        "RECORD_LIST_TOO_LARGE",
        "SASL_AUTHENTICATION_FAILED",
        "SECURITY_DISABLED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_SASL_MECHANISM",
        "UNSUPPORTED_VERSION",
        "_AUTHENTICATION",
        "_BAD_COMPRESSION",
        "_INVALID_ARG",
        "_NOT_IMPLEMENTED",
        "_UNSUPPORTED_FEATURE",
    }
)
"""Errors of Kafka that its own client does not try again. (`retriable()` of confluent-kafka's speaks of transactions
alone, and says no to a connection that broke.)"""
_OF_GRPC: Final = frozenset(
    {
        "ALREADY_EXISTS",
        "DATA_LOSS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
_STATUSES: Final = frozenset(range(400, 500)) - {408, 409, 425, 429, 499} | {501, 505}
"""Of HTTP. The others say: too slow, a conflict with what another one does, too early, too much, given up."""
_PASSING_OF_AWS: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "RequestTimeoutException",
        "SlowDown",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
    }
)
"""Codes that botocore tries again whatever their status, often 400; and of credentials that a new attempt renews."""


def is_permanent(error: BaseException) -> bool:
    """Tell whether a client says of its error that another try meets it again."""
    if getattr(error, "retriable", True) is False:
        return True
    if _code_of_aws(error) in _PASSING_OF_AWS:
        return False
    return _name_of_kafka(error) in _OF_KAFKA or _name_of_grpc(error) in _OF_GRPC or _status(error) in _STATUSES


def _name_of_kafka(error: BaseException) -> Any:
    name = getattr(error.args[0], "name", None) if error.args else None
    return name() if callable(name) else None


def _name_of_grpc(error: BaseException) -> Any:
    """That of an `RpcError`, or of Google's error that was one."""
    code = getattr(error, "code", None)
    return getattr(code() if callable(code) else getattr(error, "grpc_status_code", None), "name", None)


def _code_of_aws(error: BaseException) -> Any:
    return _of_aws(error, "Error").get("Code")


def _status(error: BaseException) -> int | None:
    """The status of HTTP, as botocore, Azure, aiohttp or Google say it."""
    said = [_of_aws(error, "ResponseMetadata").get("HTTPStatusCode")]
    said += [getattr(error, name, None) for name in ("status_code", "status", "code")]
    return next((status for status in said if isinstance(status, int)), None)


def _of_aws(error: BaseException, part: str) -> dict[str, Any]:
    response = getattr(error, "response", None)
    found = response.get(part) if isinstance(response, dict) else None
    return found if isinstance(found, dict) else {}
