# SPDX-License-Identifier: Apache-2.0
"""Whose fault an error of a source, a sink or the checkpoints' storage is: the world's around the query, or a bug's.

The operation decides together with the error's type, and never the traceback: the same ENOENT is the world's out of a
sink's `write`, also of one that a user wrote, and the user's out of a function of `mapInArrow`. An error of the
world's becomes an `OutsideError`, for which the query begins anew, however often, with the growing wait. All else
stays as it is: a `ValueError`, a value that a declared schema refuses, a file whose contents can't be read.

The world's are:

- `OSError`, and so all that is one: `ConnectionError`, `TimeoutError`, `ssl.SSLError`, Arrow's I/O errors, those of
  `requests`, `fsspec` and `s3fs`;
- those of clients which have a family of their own (`CLIENTS`), told by name, so that nothing is imported, where the
  client does not say that trying again is in vain (`permanent_errors`);
- a location that can't be reached at all: a `CheckpointError` whose cause is one of these;
- an `OutsideError` that a source or a sink raises itself: what to raise for a client that is not in the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError, FencedError
from penstock.errors import OutsideError
from penstock.stream.permanent_errors import is_permanent

CLIENTS: Final = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "aiohttp.client_exceptions.ClientResponseError",
        "azure.core.exceptions.AzureError",
        "botocore.exceptions.ClientError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.CredentialRetrievalError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.IncompleteReadError",
        "botocore.exceptions.MetadataRetrievalError",
        "botocore.exceptions.TokenRetrievalError",
        "cimpl.KafkaException",
        "confluent_kafka.KafkaException",
        "google.api_core.exceptions.GoogleAPIError",
        "grpc.RpcError",
        "http.client.HTTPException",
        "httpx.TransportError",
        "kafka.errors.KafkaError",
        "psycopg.OperationalError",
        "psycopg2.OperationalError",
        "pyiceberg.exceptions.AuthorizationExpiredError",
        "pyiceberg.exceptions.CommitFailedException",
        "pyiceberg.exceptions.CommitStateUnknownException",
        "pyiceberg.exceptions.ServerError",
        "pyiceberg.exceptions.ServiceUnavailableError",
        "pyiceberg.exceptions.TooManyRequestsError",
        "pyiceberg.exceptions.WaitingForLockException",
        "pymysql.err.OperationalError",
        "redis.exceptions.RedisError",
        "sqlalchemy.exc.OperationalError",
        "urllib3.exceptions.HTTPError",
    }
)
"""Base classes of what clients of brokers, databases, catalogs and object stores raise where it is no `OSError`."""
_OURS: Final = (CorruptCheckpointError, FencedError)


@contextmanager
def outside(operation: str) -> Iterator[None]:
    """A block that asks the world: its errors become OutsideError, whose message begins with the operation."""
    try:
        yield
    except OutsideError:
        raise
    except Exception as error:
        if not is_outside(error):
            raise
        raise OutsideError(f"{operation}: {type(error).__name__}: {error}") from error


def is_outside(error: BaseException) -> bool:
    """Tell whether an error of such an operation is the world's."""
    if isinstance(error, OSError | OutsideError):
        return True
    if isinstance(error, CheckpointError) and not isinstance(error, _OURS):
        return error.__cause__ is not None and is_outside(error.__cause__)
    is_clients = any(f"{kind.__module__}.{kind.__qualname__}" in CLIENTS for kind in type(error).__mro__)
    return is_clients and not is_permanent(error)
