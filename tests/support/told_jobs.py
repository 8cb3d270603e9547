# SPDX-License-Identifier: Apache-2.0
"""The events of jobs that never ran, for tests of the page."""

from __future__ import annotations

from typing import Any

from penstock.web.store import JobStore


def plan(stages: int = 2, tasks: int = 2, *, is_query: bool = False, name: str = "told") -> dict[str, Any]:
    """A chain of stages."""
    return {
        "name": name,
        "stages": [
            {"id": each, "name": f"stage {each}", "parallelism": tasks, "uid": f"u{each}"} for each in range(stages)
        ],
        "edges": [
            {
                "id": each,
                "producer": each,
                "consumer": each + 1,
                "exchange": "hash",
                "mode": "pipelined_bounded",
                "service": "local",
            }
            for each in range(stages - 1)
        ],
        "is_query": is_query,
        "result": [],
        "kept_by": None,
        "notes": [],
        "place": "script.py:7",
        "slots": stages * tasks,
        "began": 1_790_000_000.0,
    }


def figures(busy: float, rows: float = 1000.0, seconds: float = 10.0, peak: float = 2e8) -> dict[str, float]:
    """Those of one subtask."""
    return {
        "rows_in": rows,
        "rows_out": rows,
        "bytes_in": 8 * rows,
        "bytes_out": 8 * rows,
        "seconds": seconds,
        "idle_seconds": seconds * (1 - busy),
        "back_pressured_seconds": 0.0,
        "operator.mapInArrow": busy * seconds,
        "resident_bytes": 1e8,
        "peak_resident_bytes": peak,
        "profile.slow (job.py:3);line 7": 0.75 * busy * seconds,
        "profile.slow (job.py:3);line 8;DataFrame.apply (pandas/core/frame.py:9)": 0.25 * busy * seconds,
    }


def tell(store: JobStore, job: str = "j1", *, stages: int = 2, tasks: int = 2, error: str = "", **more: Any) -> None:
    """A whole life: its tasks run for ten seconds, the last stage is the busy one."""
    store.say(job, "job_submitted", plan(stages, tasks, **more))
    store.say(job, "trace", {"seconds": 0.1, "name": "job_admitted", "ids": job})
    everybody = [(stage, subtask) for stage in range(stages) for subtask in range(tasks)]
    for stage, subtask in everybody:
        attempt = f"{job}/v{stage}.{subtask}#0"
        store.say(job, "trace", {"seconds": 0.2, "name": "task_registered", "ids": attempt})
        store.say(job, "trace", {"seconds": 0.5, "name": "task_deployed", "ids": attempt})
    for stage, subtask in everybody:
        store.say(
            job, "trace", {"seconds": 10.0, "name": "task_finished", "ids": f"{job}/v{stage}.{subtask}#0 FINISHED"}
        )
    for stage, subtask in everybody:
        told = figures(0.95 if stage == stages - 1 else 0.1, peak=(2 + subtask) * 1e8)
        said = {"stage": stage, "subtask": subtask, "figures": told, "state": "finished", "attempt": 0}
        store.say(job, "subtask", {**said, "environment": "host-1-abc"})
    state = "FAILED" if error else "FINISHED"
    first, _, rest = error.partition("\n")
    ended = {"state": state, "seconds": 10.5, "slots": stages * tasks, "error": first, "details": rest}
    store.say(job, "job_ended", ended)
    store.end(job)
