# SPDX-License-Identifier: Apache-2.0
"""What `penstock queries` and others ask of a session's queries, done by the handles that its program has."""

from __future__ import annotations

from typing import Any

from penstock.api.streaming.queries import StreamingQueries
from penstock.api.streaming.query import StreamingQuery
from penstock.errors import SettingError
from penstock.link.operator import (
    ListQueries,
    QueryEnded,
    QueryList,
    QueryNow,
    QuerySaved,
    RescaleQuery,
    SaveQuery,
    StopQuery,
)
from penstock.link.wire import Done
from penstock.shuffle.requests import Request


def operate(queries: StreamingQueries, request: Request[Any]) -> object:
    """The answer; blocks until it is done. Raises what the operator is to be told."""
    match request:
        case ListQueries():
            return QueryList(tuple(_now(query) for query in queries.active))
        case StopQuery():
            query = _found(queries, request.query)
            query.stop(request.seconds, savepoint=request.savepoint or None)
            return QueryEnded("" if (error := query.exception()) is None else str(error))
        case SaveQuery():
            query = _found(queries, request.query)
            return QuerySaved(query.checkpoint(request.seconds, savepoint=request.savepoint))
        case RescaleQuery():
            _found(queries, request.query).rescale(request.tasks, request.seconds)
            return Done()
    raise SettingError(f"{type(request).__name__} is nothing that a query does")


def _found(queries: StreamingQueries, wanted: str) -> StreamingQuery:
    """The running query of this name, or whose id begins so; raises SettingError where it is none, or several."""
    running = queries.active
    named = [query for query in running if query.name == wanted] or [
        query for query in running if wanted and query.id.startswith(wanted)
    ]
    if len(named) == 1:
        return named[0]
    known = ", ".join(f"{query.name or 'without a name'} ({query.id})" for query in running) or "none"
    raise SettingError(f"{'several queries are' if named else 'no query is'} called {wanted!r}: there are {known}")


def _now(query: StreamingQuery) -> QueryNow:
    report: dict[str, Any] = query.lastProgress or {}
    return QueryNow(
        query.id,
        query.name or "",
        str(query.status["message"]),
        query.slots,
        float(report.get("inputRowsPerSecond", 0.0)),
        int(report.get("batchId", -1)),
        query.tasks,
    )
