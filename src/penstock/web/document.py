# SPDX-License-Identifier: Apache-2.0
"""A job's record as the one document that the page draws: plain values, names as they are, nothing that is HTML.

The same for a job that runs, one that is over and one out of a log. Tables are columns and rows. A document for a
file has no data of rows: a hot key is said to be there, and not which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.graph.streaming import vertex_of_part
from penstock.job.core.bottleneck import Load, StageLoad, load_of
from penstock.job.core.result import SubtaskStatus
from penstock.job.core.slow_parts import PHASES
from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT, WATERMARK
from penstock.web.flame import flame
from penstock.web.headline import headline
from penstock.web.phases import quartiles, share_of
from penstock.web.record import JobRecord
from penstock.web.series import drawn
from penstock.web.timeline import lined_up
from penstock.web.titles import short_name

SUBTASK_COLUMNS = (
    *("stage", "subtask", "state", "attempt", "environment", "rowsIn", "rowsOut", "bytesIn", "bytesOut", "seconds"),
    *("busy", "pressed", "idle", "storing", "inQueue", "outQueue", "inPool", "outPool", "spilled"),
    *("resident", "peakResident"),
)
PARTITION_COLUMNS = ("partition", "edge", "stage", "subtask", "environment", "state", "bytes")
PART_COLUMNS = ("stage", "subtask", *PHASES, "bytes", "inFlight")
_ENDED = ("finished", "failed", "canceled", "empty")


def entry(record: JobRecord) -> dict[str, Any]:
    """A job in the list of jobs."""
    plan = record.plan
    return {
        "job": record.job,
        "name": plan["name"] if record.is_query else short_name(plan["name"]),
        "kind": "query" if record.is_query else "batch",
        "state": record.state,
        "isOver": record.is_over,
        "seconds": round(record.seconds, 2),
        "began": plan.get("began", 0.0),
        "place": plan.get("place", ""),
        "headline": headline(record)["text"],
    }


def document(record: JobRecord, *, is_file: bool = False) -> dict[str, Any]:
    """All that the page shows of one job."""
    plan = record.plan
    spans = record.timeline.spans()
    lines = lined_up(spans)
    return {
        **entry(record),
        "headline": headline(record, is_file=is_file),
        "phases": [[phase.name, round(phase.seconds, 3), phase.stage] for phase in record.phases()],
        "slots": record.slots,
        "waits": record.waits,
        "notes": list(dict.fromkeys(plan.get("notes", []))),
        "stages": [_stage(record, stage) for stage in plan["stages"]],
        "edges": [_edge(record, edge) for edge in plan["edges"]],
        "subtasks": {"columns": SUBTASK_COLUMNS, "rows": _subtasks(record)},
        "partitions": {"columns": PARTITION_COLUMNS, "rows": _partitions(record)},
        "checkpoints": _checkpoints(record),
        "timeline": {
            "lines": max(lines, default=-1) + 1,
            "dropped": record.timeline.dropped,
            "spans": [
                [line, span.stage, span.subtask, span.attempt, *_times(span.begin, span.ran, span.end), span.how]
                for line, span in zip(lines, spans, strict=True)
            ],
        },
        "profiles": [[int(stage), flame(stacks)] for stage, stacks in record.profiles.items()],
        "settings": plan.get("settings", {}),
        "series": drawn(record.series.points(), [stage["id"] for stage in plan["stages"]]),
        "errors": [[round(seconds, 2), what, text] for seconds, what, text in record.errors],
        "error": record.error,
    }


def _stage(record: JobRecord, stage: Mapping[str, Any]) -> dict[str, Any]:
    number = stage["id"]
    figures, load = record.totals.get(number, {}), record.loads.get(number)
    statuses = record.statuses.get(number, [])
    states = [status.state for status in statuses]
    whole = StageLoad(number, "", tuple(map(load_of, record.figures.get(number, []))))
    duration = record.times.duration(number, record.seconds)
    return {
        "id": number,
        "name": record.titles[number],
        "whole": stage["name"],
        "share": None if record.is_query else round(share_of(whole, record.slots, record.seconds), 3),
        "duration": None if duration is None else round(duration, 3),
        "quartiles": quartiles(record.figures.get(number, [])),
        "tasks": len(statuses) or stage["parallelism"],
        "running": states.count("running"),
        "ended": sum(states.count(state) for state in _ENDED),
        "rowsIn": round(figures.get("rows_in", 0)),
        "rowsOut": round(figures.get("rows_out", 0)),
        "bytesIn": round(figures.get("bytes_in", 0)),
        "bytesOut": round(figures.get("bytes_out", 0)),
        "spilled": round(figures.get("spilled_bytes", 0)),
        "peakResident": figures.get(PEAK_RESIDENT),
        "late": round(figures.get("rows_late", 0)),
        "watermark": min(
            (each[WATERMARK] for each in record.figures.get(number, []) if WATERMARK in each), default=None
        ),
        "stateRows": figures.get("state_rows"),
        "stateBytes": figures.get("state_bytes"),
        **_shares(load, record.levels.get(number)),
    }


def _shares(load: StageLoad | None, level: tuple[float, float] | None) -> dict[str, Any]:
    """The load of a stage: that of its busiest subtask, and the mean of all."""
    if load is None or not any(each.span for each in load.subtasks):
        busy, pressed = level or (None, None)
        return {"busy": busy, "pressed": pressed, "busyMean": busy, "busiest": None, "operators": []}
    busiest = load.subtasks[load.busiest]
    ran = [each for each in load.subtasks if each.span]
    return {
        "busy": round(load.work, 3),
        "pressed": round(load.pressed, 3),
        "busyMean": round(sum(each.work for each in ran) / len(ran), 3),
        "busiest": load.busiest,
        "operators": _operators(busiest),
    }


def _operators(load: Load) -> list[list[Any]]:
    shares = {name: load.share(seconds) for name, seconds in load.operators.items()}
    return [[name, round(shares[name], 3)] for name in sorted(shares, key=lambda name: -shares[name])[:8]]


def _edge(record: JobRecord, edge: Mapping[str, Any]) -> dict[str, Any]:
    """An exchange, and the share of buffers in use at its fullest task: writers' and readers'."""
    return {
        **edge,
        "fillOut": _most(record.figures.get(edge["producer"], []), "out_pool_usage"),
        "fillIn": _most(record.figures.get(edge["consumer"], []), "in_pool_usage"),
    }


def _most(figures: list[Mapping[str, float]], name: str) -> float | None:
    told = [each[name] for each in figures if name in each]
    return round(max(told), 3) if told else None


def _subtasks(record: JobRecord) -> list[list[Any]]:
    rows = []
    for stage, each_of in record.figures.items():
        load, statuses = record.loads.get(stage), record.statuses[stage]
        for number, figures in enumerate(each_of):
            status = statuses[number] if number < len(statuses) else SubtaskStatus("unknown")
            loads = load.subtasks[number] if load is not None and number < len(load.subtasks) else Load()
            rows.append([stage, number, *_subtask(figures, status, loads)])
    return rows


def _subtask(figures: Mapping[str, float], status: SubtaskStatus, load: Load) -> list[Any]:
    counts = (round(figures.get(name, 0)) for name in ("rows_in", "rows_out", "bytes_in", "bytes_out"))
    shares: tuple[float | None, ...] = (None,) * 4
    if load.span:
        idle = max(0.0, load.span - load.busy - load.back_pressured - load.storing)
        times = (load.busy, load.back_pressured, idle, load.storing)
        shares = tuple(round(load.share(seconds), 3) for seconds in times)
    pools = (figures.get(name) for name in ("in_queue", "out_queue", "in_pool_usage", "out_pool_usage"))
    seconds, spilled = round(figures.get("seconds", 0.0), 2), round(figures.get("spilled_bytes", 0))
    place = (status.state, status.attempt, status.environment)
    used = (None if each is None else round(each, 3) for each in pools)
    memory = (figures.get(name) for name in (RESIDENT, PEAK_RESIDENT))
    return [*place, *counts, seconds, *shares, *used, spilled, *memory]


def _partitions(record: JobRecord) -> list[list[Any]]:
    """The partitions of all attempts that are the current ones, by what is known of their producers."""
    plan, rows = record.plan, []
    job = plan.get("job", record.job)
    outputs = [(edge["producer"], DatasetId(job, edge["id"]), edge["mode"]) for edge in plan["edges"]]
    results = [(stage, DatasetId(job, stage, is_result=True), "result") for stage in plan.get("result", [])]
    for stage, dataset, edge in (*outputs, *results):
        for number, status in enumerate(record.statuses.get(stage, [])):
            if status.state in ("not started", "empty"):
                continue
            figures = record.figures[stage][number] if number < len(record.figures[stage]) else {}
            name, state = str(PartitionId(dataset, number, status.attempt)), _partition_state(record, status, edge)
            place = (edge, stage, number, status.environment)
            rows.append([name, *place, state, round(figures.get("bytes_out", 0))])
    return rows


def _partition_state(record: JobRecord, status: SubtaskStatus, edge: str) -> str:
    if record.is_over:
        return "kept as result" if edge == "result" and record.state == "FINISHED" else "released"
    return {"running": "being written", "waiting": "registered", "finished": "complete"}.get(status.state, "gone")


def _checkpoints(record: JobRecord) -> dict[str, Any]:
    sums, summary = record.sums, None
    if sums.seen:
        least, total, most = zip(sums.seconds, sums.bytes, strict=True)
        mean = [value / sums.seen for value in total]
        summary = {name: [round(value, 4) for value in pair] for name, pair in _named(least, mean, most)}
    return {
        "completed": sums.completed,
        "failed": sums.failed,
        "summary": summary,
        "history": [_checkpoint(said) for said in record.checkpoints],
        "columns": PART_COLUMNS,
        "tasks": {str(number): _parts(record, tasks) for number, tasks in record.parts.items()},
    }


def _named(least: Any, mean: Any, most: Any) -> tuple[tuple[str, Any], ...]:
    return ("least", least), ("mean", mean), ("most", most)


def _checkpoint(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "number": said["number"],
        "at": round(said["seconds"], 2),
        "took": round(said["took"], 4),
        "bytes": round(said["bytes"]),
        "inFlight": round(said["in_flight_bytes"]),
        "cause": said["cause"],
    }


def _parts(record: JobRecord, tasks: Mapping[str, Mapping[str, float]]) -> list[list[Any]]:
    numbers = {stage.get("uid", ""): stage["id"] for stage in record.plan["stages"]}
    rows = []
    for name, figures in sorted(tasks.items()):
        uid, subtask = vertex_of_part(name)
        phases = (round(figures.get(figure, 0.0), 4) for figure in PHASES.values())
        sizes = (round(figures.get(figure, 0)) for figure in ("bytes", "in_flight_bytes"))
        rows.append([numbers.get(uid, uid), subtask, *phases, *sizes])
    return rows


def _times(*seconds: float | None) -> list[float | None]:
    return [None if each is None else round(each, 3) for each in seconds]
