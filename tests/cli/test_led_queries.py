# SPDX-License-Identifier: Apache-2.0
"""`penstock queries` and who may use it: the user of a session, and whoever has its key; nobody else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from job_fakes import ThreadLauncher, run_well
from penstock.cli import main
from penstock.connection.handshake import Credentials
from penstock.errors import PenstockError, SettingError
from penstock.job.shell.master import JobMaster, MasterIdentity
from penstock.link.master import Heartbeat
from penstock.link.operator import (
    OPERATOR,
    ListQueries,
    MasterSecrets,
    QueryEnded,
    QueryList,
    QueryNow,
    QuerySaved,
    SaveQuery,
    StopQuery,
    operator_key,
)
from penstock.link.session_files import SessionFacts, SessionFile, read_session, session_files
from penstock.operating import asked
from penstock.shuffle.requests import Request

SECRET = b"s" * 32
QUERY = QueryNow("4711-ab", "counts", "it runs", 2, 1234.5, 7, (1, 1))


SAVED: list[str] = []
"""The folders of savepoints that were asked for."""


def office(request: Request[Any]) -> object:
    """A query that stops with an error, and one without a name."""
    match request:
        case ListQueries():
            return QueryList((QUERY, replace(QUERY, id="5822-cd", name="")))
        case SaveQuery():
            SAVED.append(request.savepoint)
            return QuerySaved(7)
        case StopQuery("4711-ab"):
            return QueryEnded("its sink is away")
    raise KeyError("a fault of ours")


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The command takes SIGTERM for itself; the test run wants it back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Path]:
    """A session with one query: its file."""
    master = JobMaster(MasterIdentity("app-1", SECRET), ThreadLauncher(run_well))
    master.start()
    master.operated_by(office)
    facts = SessionFacts("app-1", "my program", os.getpid(), master.url, operator_key(SECRET).hex())
    file = SessionFile(facts, str(tmp_path))
    (path,) = session_files(str(tmp_path))
    yield path
    file.close()
    file.close()
    master.close()


def test_the_user_of_a_session_and_a_copy_of_its_file_lead_its_queries(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the office says comes out, errors too; a file that is not its owner's alone is refused."""
    copy = tmp_path / "copy"
    shutil.copy(session, copy)
    for place in (["--directory", str(tmp_path)], ["--session", str(copy)]):
        assert main(["queries", "list", *place]) == 0
        said = capsys.readouterr().out
        assert said.startswith("my program (app-1, pid ")
        assert "  counts  4711-ab  1 + 1 tasks  1,234 rows/s  checkpoint 7  it runs\n" in said
    assert main(["queries", "list", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "it runs"
    for words, said in (
        (["stop", "counts"], "query counts has ended with an error: its sink is away"),
        (["rescale", "4711", "2"], "RescaleQuery failed: KeyError('a fault of ours')"),
    ):
        assert main(["queries", *words, *place]) == 1
        assert said in capsys.readouterr().err
    copy.chmod(0o644)
    with pytest.raises(SettingError, match="is not its owner's alone: chmod 600 it"):
        read_session(copy)


def test_nobody_else_does(session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another key is refused by a sentence, so is a file that is none; an operator is no environment."""
    facts = read_session(session)
    assert facts.key not in repr(facts)
    assert session.stat().st_mode & 0o777 == 0o600
    assert session.parent.stat().st_mode & 0o777 == 0o700
    forged = tmp_path / "forged"
    forged.touch(0o600)
    forged.write_text(session.read_text().replace(facts.key, "00" * 32))
    for file, said in (
        (forged, "refuses this key: the file is of another session"),
        (Path(__file__), "is no file of"),
    ):
        assert main(["queries", "list", "--session", str(file)]) in (1, 2)
        assert said in capsys.readouterr().err
    with pytest.raises(PenstockError, match="there is no call Heartbeat for an operator"):
        asked(facts, Heartbeat("env"))


def test_a_session_that_has_ended_is_not_seen(
    session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder goes with it; of one that was killed the lock is free, and a copy of its file says who was there."""
    dead = session.parent.with_name("dead")
    shutil.copytree(session.parent, dead)
    assert session_files(str(tmp_path)) == [session]
    stale = tmp_path / "stale"
    stale.touch(0o600)
    stale.write_text(session.read_text().replace(read_session(session).master, "tcp://127.0.0.1:1"))
    for words in (["list"], ["stop", "counts"]):
        assert main(["queries", *words, "--session", str(stale)]) == 1
        assert "my program is not reached at tcp://127.0.0.1:1 (pid " in capsys.readouterr().err
    facts = replace(read_session(stale), application="app-2")
    silent = SessionFile(facts, str(tmp_path))
    assert main(["queries", "list", "--directory", str(tmp_path)]) == 1
    assert "  counts  4711-ab" in capsys.readouterr().out
    for query, said in (
        ("counts", "It may have a query 'counts' too: name the session by --session"),
        ("4711", "It may have a query '4711' too"),
        ("4711-ab", "query counts has ended with an error: its sink is away"),
    ):
        assert main(["queries", "stop", query, "--directory", str(tmp_path)]) == 1
        assert said in capsys.readouterr().err
    (_, place) = session_files(str(tmp_path))
    place.write_text("{")
    assert main(["queries", "list", "--directory", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "  counts  4711-ab" in said.out
    assert f"{place} is no file of a session" in said.err
    silent.close()
    assert main(["queries", "list", "--directory", str(tmp_path / "none")]) == 0
    assert "no session of this user on this host has streaming queries" in capsys.readouterr().err


def test_an_empty_name_is_no_query(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock queries stop "$NAME"` where NAME is not set stops none, not even one without a name."""
    assert main(["queries", "stop", "", "--session", str(session)]) == 2
    assert "no query is named" in capsys.readouterr().err


def test_a_savepoint_s_folder_is_the_caller_s(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver has another working folder; an address of a store stays as it is."""
    monkeypatch.chdir(tmp_path)
    SAVED.clear()
    for folder in ("saved", "/data/saved", "s3://bucket/saved"):
        assert main(["queries", "savepoint", "counts", folder, "--session", str(session)]) == 0
    assert [str(tmp_path / "saved"), "/data/saved", "s3://bucket/saved"] == SAVED
    assert f"is at {tmp_path / 'saved'}" in capsys.readouterr().out


def test_a_session_whose_file_can_t_be_written_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when it begins: there is no half file, and the next try has its folder."""
    facts = SessionFacts("app-1", "my program", os.getpid(), "tcp://127.0.0.1:1", "00" * 32)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.link.session_files.json.dump", full)
        with pytest.raises(OSError, match="no space left"):
            SessionFile(facts, str(tmp_path))
    assert session_files(str(tmp_path)) == []
    file = SessionFile(facts, str(tmp_path))
    assert len(session_files(str(tmp_path))) == 1
    file.close()


def test_the_key_of_operators_opens_nothing_else() -> None:
    """It is not the application's secret, and each name is known by its own."""
    known = MasterSecrets.of(Credentials("app-1", SECRET))
    assert known.secret_of(f"{OPERATOR}7") == operator_key(SECRET) != SECRET
    assert known.secret_of("host-7-abc") == SECRET
    assert known.identity == "app-1"
    assert operator_key(SECRET).hex() not in repr(known)
