# SPDX-License-Identifier: Apache-2.0
"""The page in a real headless browser: over a query of real processes, over logs, as a report, by keyboard alone."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from playwright.sync_api import Browser

from browser import Visit, chromium, visit
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph
from penstock.graph.streaming import StreamingOptions
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.master import JobHandle
from penstock.job.shell.processes import ProcessNow
from penstock.link.figures import UseFigures, UseKind
from penstock.stream.noop import NoopWriter
from penstock.stream.rate import RateSource
from penstock.testing import DEADLINE, wait_until
from penstock.web.logs import JobLogFiles
from penstock.web.page import PagePlace, WebPage
from penstock.web.report import write_report
from penstock.web.store import JobStore
from penstock_torture.gates import Gates, stream
from penstock_torture.process_launcher import Nursery
from process_cluster import STREAMING_PRELOADED, ProcessCluster
from told_jobs import tell
from underway import listed

pytestmark = pytest.mark.processes

OF_ALL_JOBS = ("jobs", "logs", "processes")
"""Views of what a page has beside one job."""
OF_A_JOB = ("stages", "subtasks", "partitions", "checkpoints", "slots", "charts", "profile", "errors", "settings")
TABS = (*OF_ALL_JOBS, *OF_A_JOB)
SCHEMA = pa.schema([("value", pa.int64())])
PAUSE = 50e-6
BUSY = "Number(document.querySelector(\"[data-stage='1']\")?.dataset.busy || 1)"
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class SlowWhile:
    """Takes its time for each row while a file is there."""

    path: str

    def __call__(self, batches: Batches) -> Batches:
        """As a function for `mapInArrow`."""
        for batch in batches:
            if Path(self.path).exists():
                time.sleep(PAUSE * batch.num_rows)
            yield batch


@dataclass(frozen=True)
class Swallow:
    """A sink that keeps nothing."""

    name: str = "nowhere"

    def open(self, subtask: int, parallelism: int, restored: object) -> NoopWriter:
        """One subtask's."""
        return NoopWriter()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of this file."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of logs and marks."""
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[ProcessCluster]:
    """One executor; jobs have logs."""
    conf = {"spark.penstock.observe.eventLog": str(folder / "logs"), "spark.penstock.observe.profile": "true"}
    with (
        Nursery(STREAMING_PRELOADED) as nursery,
        contextlib.closing(ProcessCluster(nursery, executors=1, conf=conf)) as made,
    ):
        for executor in made.launcher.executors:
            made.environment_pid(executor)
        yield made


@pytest.fixture(scope="module")
def served(cluster: ProcessCluster) -> Iterator[WebPage]:
    """The page of the cluster's jobs."""
    store = JobStore()
    cluster.master.tell_jobs(store, store.look)
    with contextlib.closing(WebPage(PagePlace(), store, cluster.master.processes).open()) as page:
        yield page


@contextlib.contextmanager
def query(cluster: ProcessCluster, slow: Path, location: Path) -> Iterator[JobHandle]:
    """A source, a stage that is slow while a file is there, a sink."""
    source = RateSource(2_000_000, 1, None)
    step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True)  # type: ignore[arg-type]
    rows = Stream((step,)).select("value").rebalance(1)
    held = rows.mapInArrow(SlowWhile(str(slow)), SCHEMA).rebalance(1)
    options = StreamingOptions("q", "numbers", str(location), interval=0.5)
    graph = query_graph(held.branches, Swallow(), cluster.settings, 4, options)
    storage = QueryStorage(options)
    storage.claim({vertex.uid: vertex.parallelism for vertex in graph.vertices})
    handle = cluster.submit_graph(graph, 4, cluster.settings, storage)
    try:
        yield handle
    finally:
        handle.cancel("seen enough")
        with contextlib.suppress(Exception):
            handle.wait(DEADLINE)


def _colour(seen: Visit, stage: int) -> str:
    return seen.page.eval_on_selector(f"[data-stage='{stage}'] .box", "each => getComputedStyle(each).fill")


@pytest.mark.thorough
def test_a_stage_that_is_slowed_changes_its_colour_and_is_named(
    cluster: ProcessCluster, served: WebPage, browser: Browser, tmp_path: Path
) -> None:
    """The box, its figures and the headline, without anything being asked for again; and all views have something."""
    slow = tmp_path / "slow"
    with query(cluster, slow, tmp_path / "q"), visit(browser, f"{served.url}&every=0.5") as seen:
        assert "token" not in seen.page.url
        seen.until(f"{BUSY} < 0.3")
        before = _colour(seen, 1)
        slow.touch()
        seen.until(f"{BUSY} > 0.9")
        seen.until("document.querySelector(\"[data-stage='1']\").getAttribute('class') === 'vertex found'")
        assert _colour(seen, 1) != before
        assert re.match("Held back by rebalance.* most of it in mapInArrow", seen.page.inner_text("#headline"))
        assert "back-pressured" in (seen.page.text_content("[data-stage='0']") or "")
        for tab in TABS:
            assert seen.show(tab).strip()
        assert "Partitions that they hold" in seen.show("processes")
        seen.until("document.querySelectorAll('#panel tbody tr').length >= 4")
        assert "No stage runs in several processes" in seen.page.inner_text("#panel")
        seen.until("document.querySelector('#panel').innerText.includes('pid ')")
        seen.show("profile")
        seen.until("document.querySelector('#panel').innerText.includes('SlowWhile.__call__ (test_browser.py:')")
        slow.unlink()
        assert "complete" in seen.show("checkpoints")
        seen.until("document.querySelectorAll('.phases svg').length === 3")


def test_a_finished_job_and_its_log_and_its_report_show_the_same(
    cluster: ProcessCluster, served: WebPage, browser: Browser, folder: Path, tmp_path: Path
) -> None:
    """Every view of a job."""
    gates = Gates(str(tmp_path))
    gates.open_all()
    handle = cluster.submit(stream(gates, "blocking"))
    handle.wait(DEADLINE)
    log = listed(folder / "logs", f"*-{handle.job}.jsonl")[0]
    wait_until(lambda: '"job_ended"' in log.read_text(), "the log is whole")
    logs = JobLogFiles.at(log)
    write_report(tmp_path / "report.html", logs.documents())
    with contextlib.closing(WebPage(PagePlace(), logs).open()) as replayed:
        places = [f"{served.url}&every=0.5&job={handle.job}", replayed.url, (tmp_path / "report.html").as_uri()]
        live, again, sent = (_views(browser, place) for place in places)
    assert "finished" in live["facts"]
    assert " was bounded by " in live["headline"]
    assert live == again == sent


def _views(browser: Browser, url: str) -> dict[str, str]:
    with visit(browser, url) as seen:
        found = {place: seen.page.inner_text(f"#{place}") for place in ("headline", "facts", "phases", "graph")}
        return found | {tab: seen.show(tab) for tab in OF_A_JOB}


def test_five_hundred_subtasks_are_one_table(browser: Browser) -> None:
    """The whole table is there; it is sorted at once."""
    store = JobStore()
    tell(store, stages=2, tasks=250)
    opened = contextlib.closing(WebPage(PagePlace(), store).open())
    with opened as page, visit(browser, f"{page.url}#subtasks") as seen:
        seen.page.click("button[data-tab=subtasks]")
        assert seen.page.locator("table.figures tbody tr").count() == 500
        seen.page.click("table.figures th button:has-text('busy')")
        assert seen.page.inner_text("table.figures tbody tr:first-child td:nth-child(11)") == "95 %"
        assert "500 attempts" in seen.show("slots")


def test_services_have_a_page_without_jobs(browser: Browser) -> None:
    """The sentence about their processes is its headline; the view has disks and users."""
    disk = {"read_bytes": 9e6, "read_seconds": 1.0, "write_bytes": 0.0, "write_seconds": 0.0}
    users = (UseFigures(UseKind.USER, name, {"bytes": 1e6, "waiting_seconds": 2.0}) for name in ("ann", "bob"))
    uses = (UseFigures(UseKind.DISK, "/data1", disk), *users)
    process = ProcessNow("host service of h1", "h1", 0, "h1:7448", 0.1, {}, (), (), uses)

    def processes() -> Future[tuple[ProcessNow, ...]]:
        found: Future[tuple[ProcessNow, ...]] = Future()
        found.set_result((process,))
        return found

    with (
        contextlib.closing(WebPage(PagePlace(), JobStore(), processes).open()) as page,
        visit(browser, f"{page.url}#processes") as seen,
    ):
        seen.drawn()
        assert "no worker, disk or user is slow" in seen.page.inner_text("#headline")
        shown = seen.page.inner_text("#panel")
        assert all(word in shown for word in ("/data1", "ann", "bob", "h1:7448")), shown


@pytest.mark.parametrize(
    ("width", "job", "heads"),
    [
        (1400, "j1", 16),
        (1400, "q1", 16),
        (390, "j1", ["stage", "state", "duration"]),
        (390, "q1", ["stage", "state", "busy, most"]),
    ],
)
def test_nothing_is_cut_on_a_screen_of_this_width(
    browser: Browser, width: int, job: str, heads: int | list[str]
) -> None:
    """The graph and the table of six stages fit; a phone has names, states and durations."""
    store = JobStore()
    tell(store, stages=6)
    tell(store, "q1", stages=6, is_query=True)
    tell(store, "j2")
    with (
        contextlib.closing(WebPage(PagePlace(), store).open()) as page,
        visit(browser, f"{page.url}&job={job}") as seen,
    ):
        before = seen.page.evaluate("Number(document.body.dataset.drawn)")
        seen.page.set_viewport_size({"width": width, "height": 800})
        seen.drawn(before + 1)
        for place in ("html", "#graph", "#panel .scroll"):
            fits = "each => each.scrollWidth <= each.clientWidth"
            assert seen.page.eval_on_selector(place, fits), place
        shown = seen.page.locator("#panel thead th:visible").all_inner_texts()
        assert heads in (shown, len(shown))
        assert seen.show("profile").count("slow (job.py:3) 100 %") == 6
        seen.page.click("#panel button:has-text('DataFrame.apply (pandas/core/frame.py:9) 25 %')")
        assert seen.page.inner_text("#panel").count("slow (job.py:3) 100 %") == 5
        assert seen.page.eval_on_selector("#panel", fits)
        if job == "q1":
            return
        assert "start 400 ms, 4 %" in seen.page.inner_text("#phases")
        seen.show("jobs")
        seen.page.click("#panel tbody tr:has-text('j2')")
        seen.until("document.querySelector('#facts').textContent.includes('j2')")


def test_the_keyboard_alone_reaches_everything(browser: Browser) -> None:
    """Tab comes by every control; Enter chooses a stage, a view and an order; arrows go through the views."""
    store = JobStore()
    tell(store, error="ValueError: no good\nat line 3")
    tell(store, "j2")
    with contextlib.closing(WebPage(PagePlace(), store).open()) as page, visit(browser, page.url) as seen:
        reached = _reached(seen)
        assert {"a.skip", "select#job", "a#report", "section#graph", "[data-stage=0]", "[data-stage=1]"} <= reached
        assert {f"[data-tab={tab}]" for tab in TABS} <= reached
        assert any(each.startswith("sort ") for each in reached)
        seen.page.focus("[data-stage='1']")
        seen.page.keyboard.press("Enter")
        assert "2 subtasks of stage 1" in seen.page.inner_text("#panel")
        seen.page.focus("[data-tab=subtasks]")
        seen.page.keyboard.press("ArrowRight")
        assert "j2-e0.0#0" in seen.page.inner_text("#panel")
        seen.page.focus("select#job")
        seen.page.keyboard.press("ArrowDown")
        seen.until("document.querySelector('#headline').className === 'alarm'")
        seen.page.focus("[data-tab=errors]")
        seen.page.keyboard.press("Enter")
        assert "at line 3" in seen.page.inner_text("#panel")


def test_a_page_that_is_left_alone_looks_more_seldom(browser: Browser) -> None:
    """It says so; whoever touches it has the pace of the beginning again, or the one of its address."""
    store = JobStore()
    tell(store)
    with contextlib.closing(WebPage(PagePlace(), store).open()) as page, visit(browser, page.url) as seen:
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(urlsplit(request.url).query))
        seen.until("document.querySelector('#line').textContent === 'live, looked at every 2 s'")
        seen.page.evaluate("state.touched -= 2 * LEFT_ALONE.after; connect()")
        seen.until("document.querySelector('#line').textContent === 'live, looked at every 5 s'")
        seen.page.keyboard.press("Tab")
        seen.until("document.querySelector('#line').textContent === 'live, looked at every 2 s'")
        assert asked == ["every=5", "every=2"]


def _reached(seen: Visit) -> set[str]:
    """All that Tab comes by, from the top until it is there again."""
    found: list[str] = []
    seen.page.evaluate("document.activeElement.blur()")
    for _ in range(120):
        seen.page.keyboard.press("Tab")
        here = seen.page.evaluate(
            """() => { const at = document.activeElement; const data = at.dataset || {};
            if (data.stage !== undefined) return `[data-stage=${data.stage}]`;
            if (data.tab) return `[data-tab=${data.tab}]`;
            if (at.closest('th')) return `sort ${at.textContent}`;
            return at.tagName.toLowerCase() + (at.id ? `#${at.id}` : at.className ? `.${at.className}` : ''); }"""
        )
        if here == "body" or (found and here == found[0]):
            break
        found.append(here)
    return set(found)
