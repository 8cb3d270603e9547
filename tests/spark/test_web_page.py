# SPDX-License-Identifier: Apache-2.0
"""The page and the report of a real session."""

from __future__ import annotations

import json
import re
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import SettingError
from penstock.testing import DEADLINE, wait_until
from sessions import Kind, Sessions
from underway import listed

pytestmark = pytest.mark.spark


def keyed(spark: Any) -> Any:
    """A job of two stages."""
    return penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).keyBy("id", numPartitions=2)


def told(url: str) -> dict[str, Any]:
    """All that the page tells, to a browser's way of asking: by the address with the token, then by the cookie."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    assert b"<title>Penstock</title>" in opener.open(url, timeout=DEADLINE).read()
    with opener.open(url.partition("?")[0] + "data", timeout=DEADLINE) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _way_back(url: str) -> float:
    return sum(seconds for phase, seconds, _ in told(url)["document"]["phases"] if phase == "way back")


def test_a_session_has_a_page_when_it_asks(spark: Any) -> None:
    """Jobs name the line that asked for them; Spark's descriptions name the page; a closed one is opened anew."""
    page = penstock.webPage(spark)
    try:
        assert penstock.webPage(spark) is page
        assert f'href="{page.url}"' in page._repr_html_()
        keyed(spark).run()
        shown = told(page.url)
        assert shown["jobs"][0]["state"] == "FINISHED"
        assert re.fullmatch(r"test_web_page\.py:\d+", shown["jobs"][0]["place"])
        document = shown["document"]
        assert document["headline"]["phase"] in [phase for phase, *_ in document["phases"]]
        assert "keyBy(id)" in [stage["name"] for stage in document["stages"]]
        assert keyed(spark).toDF().count() == 1000
        wait_until(lambda: _way_back(page.url) > 0, "the way back is told")
        assert [each[1] for each in shown["processes"]["processes"]]
        jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        said = [
            jobs.apply(number).description().get()
            for number in range(jobs.size())
            if jobs.apply(number).description().isDefined()
        ]
        assert any(f"see {page.address}?job={shown['jobs'][0]['job']}" in text for text in said)
        assert not any(page.url in text for text in said)
    finally:
        page.close()
    with pytest.raises(OSError, match="refused"):
        told(page.url)
    again = penstock.webPage(spark)
    assert again is not page
    again.close()


def test_a_report_has_the_jobs_of_its_block(spark: Any, tmp_path: Path) -> None:
    """Also one that fails, and where the block raises; the file is whole."""
    keyed(spark).run()

    def broken(batches: Any) -> Any:
        raise ValueError("no good")

    path = tmp_path / "report.html"

    def block() -> None:
        with penstock.performanceReport(spark, path):
            keyed(spark).run()
            keyed(spark).mapInArrow(broken, "id long").run()

    with pytest.raises(Exception, match="no good"):
        block()
    (text,) = re.findall(r'id="told">(.*?)</script>', path.read_text(), re.DOTALL)
    assert [job["state"] for job in json.loads(text)] == ["FINISHED", "FAILED"]
    assert "no good" in json.loads(text)[1]["error"]


def test_a_place_that_takes_no_report_is_refused_before_the_work(spark: Any, tmp_path: Path) -> None:
    """No job has run for a report that nobody gets; nothing is left where it could have been."""
    for place in ("/proc/none/report.html", tmp_path):
        with pytest.raises(SettingError, match="can't be written"), penstock.performanceReport(spark, place):
            pytest.fail("the block has begun")
    assert listed(tmp_path) == []


@pytest.mark.thorough
def test_a_session_may_have_its_page_from_the_beginning(
    sessions: Sessions, capfd: pytest.CaptureFixture[str]
) -> None:
    """`spark.penstock.observe.page`: the first job finds it open, and its address is on standard error."""
    token = "a-token-of-many-signs"
    conf = (("spark.penstock.observe.page", "true"), ("spark.penstock.observe.pageToken", token))
    fresh = sessions.of(Kind("local[4]", 4, conf))
    assert keyed(fresh).toDF().count() == 1000
    (url,) = re.findall(r"Penstock's page is at (\S+)", capfd.readouterr().err)
    assert url == penstock.webPage(fresh).url
    assert url.endswith(f"?token={token}")
    assert told(url)["jobs"][0]["state"] == "FINISHED"
