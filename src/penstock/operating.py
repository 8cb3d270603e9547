# SPDX-License-Identifier: Apache-2.0
"""`penstock queries list | stop | savepoint | rescale`: leads streaming queries of running sessions.

Those of this user on this host are found by the files that they have (`link.session_files`); another one by a copy of
its file. A user who has neither is refused. What is asked is done by the program's own handle of the query.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from penstock.connection.frame_connection import FrameConnection
from penstock.connection.handshake import BrokenHandshakeError, Credentials, Service
from penstock.connection.opening import Opener, OpeningSettings
from penstock.connection.protection import Protection
from penstock.environment.master_line import MasterLine, NotAnsweredError
from penstock.errors import EnvironmentLostError, PenstockError, SettingError
from penstock.link.control import raise_for_error
from penstock.link.operator import OPERATOR, ListQueries, QueryNow, RescaleQuery, SaveQuery, StopQuery
from penstock.link.session_files import SessionFacts, read_session, session_files
from penstock.link.wire import from_wire
from penstock.machine.locations import is_uri
from penstock.shuffle.requests import Request

A = TypeVar("A")

_LIMITS = OpeningSettings(connect_timeout=10.0, pauses=(0.1, 0.4))


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions that are looked at: that of a `file`, or else all in the `directory` of their environments."""

    file: str = ""
    directory: str = ""

    def all(self) -> list[tuple[Path, SessionFacts | SettingError]]:
        """Those that there are, with their files, or why one can't be read; SettingError where that is the `file`."""
        if self.file:
            return [(Path(self.file), read_session(Path(self.file)))]
        found: list[tuple[Path, SessionFacts | SettingError]] = []
        for path in session_files(self.directory):
            try:
                found.append((path, read_session(path)))
            except SettingError as error:
                found.append((path, error))
        return found


def list_queries(sessions: Sessions, *, as_json: bool) -> int:
    """Print the queries of each session; 1 where one does not answer."""
    found, silent = _answered(sessions)
    for error in silent:
        sys.stderr.write(f"penstock: {error}\n")
    code = 1 if silent else 0
    if as_json:
        rows = [
            {"application": facts.name, "file": str(path), **asdict(query)}
            for path, facts, queries in found
            for query in queries
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return code
    if not found and not silent:
        sys.stderr.write("no session of this user on this host has streaming queries\n")
    for path, facts, queries in found:
        sys.stdout.write(f"{facts.name} ({facts.application}, pid {facts.pid}), file {path}\n")
        sys.stdout.writelines(f"  {line}\n" for line in _lines(queries))
    return code


def stop_query(sessions: Sessions, query: str, savepoint: str, seconds: float) -> int:
    """Stop a query; raises PenstockError where it ended with an error."""
    facts, known = _session_of(sessions, query)
    savepoint = _of_here(savepoint)
    try:
        ended = asked(facts, StopQuery(known.id, seconds, savepoint))
    except NotAnsweredError:  # its program ends with its query, and so does the session
        sys.stderr.write(f"{_title(known)} was told to stop, and its session has ended\n")
        return 0
    if ended.cause:
        raise PenstockError(f"{_title(known)} has ended with an error: {ended.cause}")
    saved = f", and its last state is at {savepoint}" if savepoint else ""
    sys.stdout.write(f"{_title(known)} has ended{saved}\n")
    return 0


def save_query(sessions: Sessions, query: str, savepoint: str, seconds: float) -> int:
    """Take a savepoint; the query goes on."""
    facts, known = _session_of(sessions, query)
    savepoint = _of_here(savepoint)
    saved = asked(facts, SaveQuery(known.id, seconds, savepoint))
    sys.stdout.write(f"checkpoint {saved.checkpoint} of {_title(known)} is at {savepoint}\n")
    return 0


def rescale_query(sessions: Sessions, query: str, tasks: int, seconds: float) -> int:
    """Give a query's stages another number of tasks."""
    facts, known = _session_of(sessions, query)
    asked(facts, RescaleQuery(known.id, seconds, tasks))
    now = next((each for each in asked(facts, ListQueries()).queries if each.id == known.id), known)
    sys.stdout.write(f"{_title(known)} goes on with {_tasks(now)} tasks, it had {_tasks(known)}\n")
    return 0


def asked(facts: SessionFacts, request: Request[A]) -> A:
    """The answer of a session; raises what it raises, and NotAnsweredError where it ends before."""
    return asyncio.run(_asked(facts, request))


async def _asked(facts: SessionFacts, request: Request[A]) -> A:
    protection = Protection(accepts_plain_text=True)  # as the session has decided; no row comes this way
    credentials = Credentials(f"{OPERATOR}{os.getpid()}", bytes.fromhex(facts.key))
    opener = Opener(protection.towards(facts.master), Service.MASTER, credentials, _LIMITS)
    try:
        endpoint = await opener.open(facts.master)
    except BrokenHandshakeError as error:
        raise PenstockError(
            f"the session at {facts.master} refuses this key: the file is of another session, or was changed. Take a"
            " copy of the file that `penstock queries list` names on its driver's host"
        ) from error
    except EnvironmentLostError as error:
        raise PenstockError(
            f"{facts.name} is not reached at {facts.master} (pid {facts.pid} on its driver's host): {error}"
        ) from error
    line = MasterLine(lambda _: None)
    line.connection = FrameConnection(endpoint, line.logic, lambda _, cause: line.closed(cause))
    try:
        answer: A = from_wire(request.ANSWER, raise_for_error(await line.ask(request, 0)))
    finally:
        line.connection.close()
    return answer


def _answered(
    sessions: Sessions,
) -> tuple[list[tuple[Path, SessionFacts, tuple[QueryNow, ...]]], list[PenstockError]]:
    """The sessions with their queries, and the errors of those that do not answer: one costs the others nothing."""
    found, silent = [], []
    for path, facts in sessions.all():
        try:
            if isinstance(facts, SettingError):
                raise facts
            found.append((path, facts, asked(facts, ListQueries()).queries))
        except PenstockError as error:
            silent.append(error)
    return found, silent


def _session_of(sessions: Sessions, wanted: str) -> tuple[SessionFacts, QueryNow]:
    """The session with the one query of this name, or whose id begins so; raises SettingError."""
    if not wanted:
        raise SettingError("no query is named: give its name, or the begin of its id")
    answered, silent = _answered(sessions)
    known = [(facts, query) for _, facts, queries in answered for query in queries]
    named = [each for each in known if each[1].name == wanted]
    found = named or [each for each in known if each[1].id.startswith(wanted)]
    if silent and [query.id for _, query in found] != [wanted]:  # a whole id is one query's, whoever is silent
        if sessions.file:
            raise silent[0]
        raise PenstockError(f"{silent[0]}. It may have a query {wanted!r} too: name the session by --session")
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{query.name or query.id} of {facts.name}" for facts, query in found or known) or "none"
    raise SettingError(
        f"{'several queries are' if found else 'no query is'} called {wanted!r}: there are {names}. The begin of an"
        " id tells queries of one name apart; sessions of other users and hosts need --session"
    )


def _lines(queries: tuple[QueryNow, ...]) -> Iterator[str]:
    if not queries:
        yield "no query runs"
    for query in queries:
        checkpoint = "no checkpoint yet" if query.checkpoint < 0 else f"checkpoint {query.checkpoint}"
        rate = f"{query.rows_per_second:,.0f} rows/s"
        yield f"{query.name or '(no name)'}  {query.id}  {_tasks(query)} tasks  {rate}  {checkpoint}  {query.status}"


def _of_here(folder: str) -> str:
    """A folder as the caller means it: the driver has another working folder."""
    return folder if not folder or is_uri(folder) else str(Path(folder).absolute())


def _tasks(query: QueryNow) -> str:
    return " + ".join(map(str, query.tasks))


def _title(query: QueryNow) -> str:
    return f"query {query.name or query.id}"
