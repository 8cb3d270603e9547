# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock_torture --world N`: queries in a world that fails, each seed a run, each run a line of a file.

A second call with the same file goes on after the seeds that are in it. Outcomes: `right`, `refused` (the last day
ended with a reason), `below` (the sink's mount was away all the time, and its rows are whole in the folder that the
mount covers: `docs/streaming.md`), or a finding: `lost`, `doubled`, `gone` (a checkpoint), `blamed` (a fault of the
world counts as a bug), `accepted` (what should be refused), `left` (files), `hung`, `error`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock_torture.mock_kafka import close_cluster
from penstock_torture.world_days import WorldRun, Wrong
from penstock_torture.world_shapes import WorldShape
from penstock_torture.world_spark import SparkWorldRun

WELL = ("right", "refused", "below")
SPARK = 1_000_000
"""Seeds from here on run on Spark (`world_spark`)."""
CONNECTORS = 2_000_000
"""Seeds from here on have connectors (`world_connectors`)."""
BATCHES = 3_000_000
"""Seeds from here on have tables by keys, or functions for each batch (`world_batches`)."""


@dataclass(frozen=True, slots=True)
class WorldResult:
    """The end of one seed."""

    seed: int
    kind: str
    outcome: str
    seconds: float
    reason: str = ""


def run_world(seed: int, *, keep: bool = False) -> WorldResult:
    """One run; `keep`: its folder stays where it was not well, and the reason names it."""
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix=f"penstock-world-{seed}-"))
    run = _run(seed, root)
    outcome, reason = "right", ""
    try:
        run.run()
    except Wrong as wrong:
        outcome, reason = wrong.kind, str(wrong)
    except PenstockError as error:
        outcome, reason = "refused", f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        outcome, reason = "error", traceback.format_exc()[-2000:]
    close_cluster(root)
    if outcome != "right":
        reason = "\n".join([reason, *run.told])
    if keep and outcome != "right":
        reason += f"\n{root}"
    else:
        shutil.rmtree(root, ignore_errors=True)
    return WorldResult(seed, run.shape.name, outcome, round(time.monotonic() - began, 2), reason)


def _run(seed: int, root: Path) -> WorldRun | SparkWorldRun:
    if seed >= BATCHES:
        return WorldRun(seed, root, WorldShape.batched)
    if seed >= CONNECTORS:
        return WorldRun(seed, root, WorldShape.connected)
    return SparkWorldRun(seed, root) if seed >= SPARK else WorldRun(seed, root)


def torture_world(asked: Sequence[int], results: Path | None, say: Callable[[str], None]) -> int:
    """`asked`: the first seed, and how many runs there are in this process, on Spark, with connectors, with batches.

    Those that have a line in the file are not run again; 0 where all are well.
    """
    seed, *counts = asked
    known = {} if results is None else read_results(results)
    ranges = zip((0, SPARK, CONNECTORS, BATCHES), counts, strict=False)
    numbers = [number for first, count in ranges for number in range(first + seed, first + seed + count)]
    for number in numbers:
        if number in known:
            continue
        result = known[number] = run_world(number)
        told = "" if result.outcome == "right" else f": {result.reason.splitlines()[0]}"
        say(
            f"{'ok  ' if result.outcome in WELL else 'FAIL'} world {number} {result.seconds:5.2f} s {result.kind}:"
            f" {result.outcome}{told}"
        )
        if results is not None:
            with results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    own = [known[number] for number in numbers]
    outcomes = Counter(result.outcome for result in own)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    say(f"world, {len(own)} runs from seed {seed} on: {told}")
    return 0 if all(result.outcome in WELL for result in own) else 1


def read_results(path: Path) -> dict[int, WorldResult]:
    """The results of a file, by their seeds; a line that was cut off is none."""
    found: dict[int, WorldResult] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            result = WorldResult(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[result.seed] = result
    return found
