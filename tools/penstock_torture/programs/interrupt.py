# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a job runs: a driver of its own gets SIGINT with its whole process group, as from a terminal.

A job that this process waits for is struck at any time, one that the JVM waits for when its functions run: while the
JVM still plans an action nobody can stop it, with PySpark alone neither.

The action must end soon with KeyboardInterrupt. The session must be fit for the seed's program then, and when the
driver has ended nothing of it may be left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.testing import wait_until
from penstock_torture.harm import leftovers
from penstock_torture.programs.run import UNCLEAR, WELL, WRONG, Ending

_SOON_SECONDS = 30.0
_ALL_SECONDS = 180.0


def interrupted(seed: int) -> Ending:
    """Interrupt a program, and return its ending."""
    draw = random.Random(f"interrupt {seed}")  # noqa: S311 - nothing secret
    mode, action = draw.choice(("pipelined", "blocking", "hybrid")), draw.choice(("count", "toDF"))
    after = draw.uniform(0, 6 if action == "count" else 2)
    began = time.monotonic()
    command = [sys.executable, "-m", "penstock_torture.programs.interrupt", str(seed), mode, action]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    watch = threading.Timer(_ALL_SECONDS, lambda: os.killpg(driver.pid, signal.SIGKILL))
    watch.start()
    try:
        outcome, said, text = _struck(driver, after)
    finally:
        watch.cancel()
    seconds = round(time.monotonic() - began, 2)
    return Ending(outcome, f"{action}, {mode}, interrupted after {after:.2f} s: {said}", seconds, text)


def _struck(driver: subprocess.Popen[str], after: float) -> tuple[str, str, str]:
    out: Any = driver.stdout
    application = _line(out, "ready ")
    time.sleep(after)
    os.killpg(driver.pid, signal.SIGINT)
    struck = time.monotonic()
    heard = _line(out, "interrupted ")
    seconds = time.monotonic() - struck
    ending = json.loads(_line(out, "ended ") or "null")
    driver.wait()
    left = leftovers(application)
    if not heard or ending is None or seconds > _SOON_SECONDS:
        return UNCLEAR, f"no KeyboardInterrupt, or no program behind it; {seconds:.1f} s", ""
    if left:
        return WRONG, f"left behind: {left}", ending["text"]
    is_well = ending["outcome"] in WELL
    said = f"heard after {seconds:.1f} s"
    return ending["outcome"], said if is_well else f"{said}: {ending['said']}", ending["text"]


def _line(out: Any, beginning: str) -> str:
    """The rest of the next line that begins so; empty where the driver ended before."""
    for line in out:
        if line.startswith(beginning):
            return str(line.removeprefix(beginning).strip())
    return ""


def _drive(seed: int, mode: Any, action: str) -> None:
    """The driver: a job that never ends by itself, then the program of the seed."""
    import penstock
    from penstock.spark.session import open_session
    from penstock_torture.programs.run import run_program
    from penstock_torture.programs.settings import SETTINGS

    setting = SETTINGS["interrupt"]
    conf = {"spark.master": setting.master, "spark.sql.shuffle.partitions": "2", **dict(setting.conf)}
    with open_session("penstock-torture", None, conf) as spark:
        spark.sparkContext.setLogLevel("OFF")
        keyed = penstock.fromDataFrame(spark.range(1000)).keyBy("id", mode=mode)
        ready = f"ready {spark.sparkContext.applicationId}"
        try:
            if action == "count":
                _tell(ready)
                keyed.mapInArrow(_endless(""), "id long").count()
            else:
                began = str(Path(tempfile.mkdtemp(), "began"))
                rows = keyed.mapInArrow(_endless(began), "id long").toDF()
                threading.Thread(target=_tell_when, args=(began, ready), daemon=True).start()
                rows.count()
        except KeyboardInterrupt:
            _tell("interrupted as it should be")
        _tell("ended " + json.dumps(asdict(run_program(seed, spark, setting.shape))))


def _endless(mark: str) -> Any:
    """A function that says by a file that it runs."""

    def endless(batches: Any) -> Any:
        if mark:
            Path(mark).touch()
        yield from batches
        time.sleep(600)

    return endless


def _tell_when(mark: str, line: str) -> None:
    wait_until(lambda: Path(mark).exists(), "the function runs", 90)
    _tell(line)


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _drive(int(sys.argv[1]), sys.argv[2], sys.argv[3])
