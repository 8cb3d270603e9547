# SPDX-License-Identifier: Apache-2.0
"""Makes the screenshots of the web page: `python -m penstock_docs.screenshots [FOLDER]`, `docs/images` by default.

A real session on this machine runs a query whose second stage is slow and a batch job on three slots; Debian's
Chromium, headless, takes the pictures. Needs the extra `dev`, and takes about a minute.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from playwright.sync_api import Browser, sync_playwright
from pyspark.sql import SparkSession

import penstock
from penstock.spark.session import open_session

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
SIZE, PHONE = {"width": 1400, "height": 820}, {"width": 390, "height": 760}
_RUN_SECONDS = 25.0
"""The query runs so long before its pictures are taken."""
_DRAWN_SECONDS = 30.0
Batches = Iterator[pa.RecordBatch]


def enrich(batches: Batches) -> Batches:
    """Slow: twenty microseconds for each row."""
    for batch in batches:
        time.sleep(20e-6 * batch.num_rows)
        yield batch


def clean(batches: Batches) -> Batches:
    """Slow: half a second for each batch, in two functions and a library."""
    for batch in batches:
        yield priced(parsed(batch))


def parsed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Most of it in a library that calls back."""
    for _ in range(3):
        json.loads('{"price": 7}', object_hook=rounded)
    time.sleep(0.1)
    return batch


def rounded(found: dict[str, float]) -> dict[str, float]:
    """A tenth of a second."""
    time.sleep(0.1)
    return found


def priced(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A tenth of a second."""
    time.sleep(0.1)
    return batch


def main(folder: Path) -> None:
    """Run the jobs and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as checkpoints, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with open_session("clicks", 3) as spark:
            spark.conf.set("spark.penstock.observe.profile", "true")
            url = penstock.webPage(spark).url
            _three_slots(spark, f"{checkpoints}/rows")
            _take(browser, url, folder, "slots")
            _take(browser, url, folder, "profile")
            _take(browser, url, folder, "profile", "profile-phone", PHONE)
            _take(browser, url, folder, "stages", "batch")
            _take(browser, url, folder, "stages", "phone", PHONE)
            clicks = penstock.readStream(spark).format("rate").option("rowsPerSecond", 100_000).load()
            slow = clicks.keyBy("value", numPartitions=2).mapInArrow(enrich, "timestamp timestamp, value long")
            writer = slow.writeStream.format("noop").queryName("clicks").option("checkpointLocation", checkpoints)
            query = writer.option("checkpointInterval", "2s").start()
            query.awaitTermination(_RUN_SECONDS)
            for view in ("stages", "checkpoints", "charts", "jobs", "processes"):
                _take(browser, url, folder, view)
            query.stop()
        browser.close()


def _three_slots(spark: SparkSession, rows: str) -> None:
    """Two maps and two reduces, one of them beside the maps; a first run starts what the second one needs."""
    spark.range(0, 80_000, 1, 2).write.parquet(rows)
    maps = penstock.readParquet(spark, rows, numPartitions=2).mapInArrow(clean, "id long")
    for _ in range(2):
        maps.keyBy("id", numPartitions=2, mode="hybrid").mapInArrow(clean, "id long").run()


def _take(
    browser: Browser, url: str, folder: Path, view: str, name: str = "", size: Mapping[str, int] = SIZE
) -> None:
    page = browser.new_page(viewport=size)  # type: ignore[arg-type]
    page.goto(f"{url}#{view}")
    page.click(f"button[data-tab={view}]")
    deadline = time.monotonic() + _DRAWN_SECONDS
    while not page.evaluate("Number(document.body.dataset.drawn || 0) >= 3") and time.monotonic() < deadline:
        page.wait_for_timeout(100)
        if page.evaluate("document.querySelector('#facts').textContent.includes('finished')"):
            break
    if size is PHONE and view == "profile":
        page.evaluate("document.querySelector('#panel').scrollIntoView()")
    page.screenshot(path=folder / f"web-page-{name or view}.png")
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
