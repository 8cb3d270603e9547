# SPDX-License-Identifier: Apache-2.0
"""`penstock replay`: a finished job out of its event log, as its driver knew it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.job.core.result import JobResult
from penstock.job.shell.history import replayed
from penstock.observe.samples import busy_seconds


def show_job(path: str, *, json: bool = False) -> int:
    """Print the job, its stages and what bounded its time; raises SettingError for no log of a finished job."""
    result = replayed(Path(path))
    console = Console()
    if json:
        console.print_json(data=_as_json(result))
        return 0
    console.print(repr(result), markup=False, soft_wrap=True)
    table = Table("stage", "tasks", "rows in", "rows out", "busy (s)", "idle (s)", "back-pressured (s)")
    for stage, figures in result.metrics.items():
        waits = (f"{figures.get(name, 0.0):,.2f}" for name in ("idle_seconds", "back_pressured_seconds"))
        rows = (f"{int(figures.get(name, 0)):,}" for name in ("rows_in", "rows_out"))
        tasks = str(len(result.subtasks[stage]))
        table.add_row(result.stages[stage], tasks, *rows, f"{busy_seconds(figures):,.2f}", *waits)
    console.print(table)
    if result.bottleneck is not None:
        console.print(result.bottleneck.text, markup=False, soft_wrap=True)
    return 0


def _as_json(result: JobResult) -> dict[str, Any]:
    return {
        "job": result.job,
        "name": result.name,
        "state": result.state.name,
        "seconds": result.seconds,
        "stages": [
            {"id": stage, "name": result.stages[stage], "figures": figures, "subtasks": result.subtasks[stage]}
            for stage, figures in result.metrics.items()
        ],
        "bottleneck": None if result.bottleneck is None else result.bottleneck.text,
        "trace": result.trace,
    }
