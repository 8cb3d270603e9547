# SPDX-License-Identifier: Apache-2.0
"""The page over real HTTP: what it gives to whom, its headers, its stream, its report."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.cli import main
from penstock.errors import SettingError
from penstock.observe import EventLog
from penstock.observe.http_server import PORTS
from penstock.testing import DEADLINE
from penstock.web.answers import FILES, LOOK_SECONDS, pace_of
from penstock.web.page import CALLERS, PagePlace, WebPage
from penstock.web.report import report
from penstock.web.store import JobStore
from told_jobs import plan, tell
from underway import listed

TOKEN = "a-token-of-many-signs"
EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def store() -> JobStore:
    """One job that failed, whose names would be HTML if they could."""
    store = JobStore()
    tell(store, name=EVIL, error=f"ValueError: {EVIL}\n  in line 3")
    return store


@pytest.fixture
def page(store: JobStore) -> Iterator[WebPage]:
    """Its page."""
    with contextlib.closing(WebPage(PagePlace(token=TOKEN), store).open()) as page:
        yield page


def ask(page: WebPage, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """An answer, read whole."""
    connection = http.client.HTTPConnection(urlsplit(page.address).netloc, timeout=DEADLINE)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        return answer
    finally:
        connection.close()


def known(page: WebPage, path: str, **headers: str) -> http.client.HTTPResponse:
    """An answer to one who has the token."""
    return ask(page, path, Authorization=f"Bearer {TOKEN}", **headers)


@pytest.mark.parametrize("path", [*FILES, "/data", "/events", "/report?job=j1", "/none", "/../access.py"])
def test_without_the_token_there_is_nothing(page: WebPage, path: str) -> None:
    """The page's own files neither; and nothing that a name of another site's leads to."""
    answer = ask(page, path)
    assert answer.status == 401
    assert "token" in answer.text  # type: ignore[attr-defined]
    assert EVIL not in answer.text  # type: ignore[attr-defined]
    assert ask(page, path, Host="evil.example", Authorization=f"Bearer {TOKEN}").status == 421


def test_the_token_in_the_address_becomes_a_cookie(page: WebPage) -> None:
    """And leaves the address; what else it asked for stays."""
    answer = ask(page, f"/?token={TOKEN}&job=j1")
    assert (answer.status, answer.headers["Location"]) == (303, "./?job=j1")
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    assert ask(page, "/", Cookie=cookie).status == 200
    assert ask(page, f"//evil.example/?token={TOKEN}").headers["Location"] == "./"


def test_every_answer_has_its_guards(page: WebPage) -> None:
    """No script but the page's own, nothing kept, in nobody's frame; refused ones too."""
    for answer in (known(page, "/"), known(page, "/page.js"), ask(page, "/"), known(page, "/none")):
        policy = answer.headers["Content-Security-Policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_it_is_read_only(page: WebPage) -> None:
    """Other methods change nothing, and say so."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(page, "/", method, Authorization=f"Bearer {TOKEN}").status == 405


def test_all_files_are_there_and_name_no_other_host(page: WebPage) -> None:
    """But for the addresses of licences and of SVG's name."""
    for path in FILES:
        answer = known(page, path)
        assert answer.status == 200
        hosts = set(re.findall(r"https?://([\w.]+)", answer.text))  # type: ignore[attr-defined]
        assert hosts <= {"www.w3.org", "github.com"}, (path, hosts)


def test_the_stream_tells_what_changes(page: WebPage, store: JobStore) -> None:
    """First all of it; a job that comes is told without being asked for."""
    connection = http.client.HTTPConnection(urlsplit(page.address).netloc, timeout=DEADLINE)
    connection.request("GET", "/events?every=0.5", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    first = _told(answer)
    assert first["document"]["job"] == "j1"
    assert first["document"]["error"].startswith(f"ValueError: {EVIL}")
    store.say("j2", "job_submitted", plan())
    assert [each["job"] for each in _told(answer)["jobs"]] == ["j2", "j1"]
    connection.close()


def test_a_reader_that_hangs_up_makes_room_at_once(page: WebPage) -> None:
    """Not with the next thing that is told: the pace asked for is a minute, and there are more readers than room."""
    for _ in range(2 * CALLERS):
        connection = http.client.HTTPConnection(urlsplit(page.address).netloc, timeout=DEADLINE)
        connection.request("GET", "/events?every=60", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert _told(answer)
        answer.close()
        connection.close()
    assert known(page, "/").status == 200


def test_a_reader_chooses_its_pace_within_limits() -> None:
    """Nobody makes the driver look without a pause; what is no number is the usual pace."""
    paces = {text: pace_of({"every": text}) for text in ("5", "0.5", "0", "-1", "1e9", "inf", "nan", "", "soon")}
    assert paces["5"] == 5.0
    assert paces["0.5"] == paces["0"] == paces["-1"] == 0.5
    assert paces["1e9"] == paces["inf"] == 60.0
    assert paces["nan"] == paces[""] == paces["soon"] == pace_of({}) == LOOK_SECONDS


def _told(answer: http.client.HTTPResponse) -> dict[str, object] | object:
    while True:
        line = answer.fp.readline()
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))


def test_a_page_that_closes_hangs_up_without_a_word(store: JobStore, caplog: pytest.LogCaptureFixture) -> None:
    """Streams that go on end; whoever wanted to know is told, once."""
    told: list[str] = []
    page = WebPage(PagePlace(token=TOKEN), store, closed=lambda: told.append("closed")).open()
    connection = http.client.HTTPConnection(urlsplit(page.address).netloc, timeout=DEADLINE)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    _told(answer)
    page.close()
    page.close()
    assert not answer.fp.readline().strip()
    assert (told, page.is_open) == (["closed"], False)
    connection.close()
    assert not caplog.records


def test_more_callers_than_it_serves_are_hung_up_on(page: WebPage) -> None:
    """Those that are there stay."""
    host = urlsplit(page.address)
    with contextlib.ExitStack() as stack:
        for _ in range(CALLERS):
            stack.enter_context(socket.create_connection((host.hostname, host.port), DEADLINE))
        late = stack.enter_context(socket.create_connection((host.hostname, host.port), DEADLINE))
        assert late.recv(1) == b""


def test_a_place_that_is_taken_is_told_with_its_settings() -> None:
    """The next ports are tried first."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with (
            contextlib.suppress(SettingError),
            contextlib.closing(WebPage(PagePlace(port=port), JobStore()).open()) as page,
        ):
            assert port < int(page.address.rstrip("/").rpartition(":")[2]) < port + PORTS
    with pytest.raises(SettingError, match="pageHost"):
        WebPage(PagePlace("192.0.2.1"), JobStore()).open()


def test_a_report_is_one_file_without_anything_of_a_users_as_html(store: JobStore, page: WebPage) -> None:
    """Its policy names its own scripts and styles; it asks no other host; the served one is the same."""
    text = report(store.documents())
    assert EVIL not in text
    assert text.count("<script>") == 6
    assert "src=" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "unsafe" not in text.partition("</head>")[0].partition("Content-Security-Policy")[2].partition(">")[0]
    (told,) = re.findall(r'id="told">(.*?)</script>', text, re.DOTALL)
    assert json.loads(told)[0]["name"] == EVIL
    assert known(page, "/report?job=j1").text == text  # type: ignore[attr-defined]
    assert known(page, "/report?job=none").status == 404


def test_the_command_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock show LOG --html FILE`; what is no log, or can't be written, is told in one line."""
    log = tmp_path / "a-j1.jsonl"
    with EventLog(log, "j1") as events:
        events.append("job_submitted", plan())
    target = tmp_path / "new" / "report.html"
    assert main(["show", str(log), "--html", str(target)]) == 0
    assert '"job":"j1"' in target.read_text()
    assert [path.name for path in listed(target.parent)] == ["report.html"]
    assert main(["show", str(tmp_path / "none"), "--html", str(target)]) == 2
    assert main(["show", str(log), "--html", "/proc/none/report.html"]) == 2
    assert "can't be written" in capsys.readouterr().err
