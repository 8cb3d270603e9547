# SPDX-License-Identifier: Apache-2.0
"""Tests do not sleep, and patch nothing private: order is forced or awaited, and what a test changes is a seam.

Those from before are counted here, by file, and the figures only go down. Turns of an event loop
(`asyncio.sleep(0)`) are no sleeps. Stages that run in tasks, and child programs, may have to wait for a file: those
are sleeps of other processes, and stand in a list of their own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

from source import Module, modules

IN_OTHER_PROCESSES = {
    "tests/processes/test_named_bottlenecks.py": 3,
    "tests/spark/cluster/test_cluster.py": 1,
    "tests/spark/test_dataframe_behaviour.py": 2,
    "tests/spark/test_datasets.py": 1,
    "tests/spark/test_end_to_end.py": 1,
    "tests/spark/test_kills.py": 2,
    "tests/spark/test_most_in_flight.py": 1,
    "tests/spark/test_remade_results.py": 1,
    "tests/spark/test_result_scan.py": 1,
    "tests/spark/test_slot_holders.py": 1,
    "tests/spark/test_two_jobs_at_once.py": 1,
    "tests/spark/test_write_parquet.py": 1,
    "tests/stream/test_rescaling.py": 1,
    "tests/support/a_day.py": 2,
    "tests/support/endless_jobs.py": 2,
    "tests/support/query_shapes.py": 1,
    "tests/support/slow_chains.py": 1,
    "tests/web/test_browser.py": 1,
}
"""Stages that hold rows back until a file is there, or are slow on purpose; a day's program waits for its end."""
SLEEPS = {
    "tests/environment/test_file_view.py": 1,
    "tests/environment/test_hybrid_memory.py": 1,
    "tests/support/small_hosts.py": 1,
}
"""Loops that let an event loop's threads go on while they look at a condition."""
PATCHES = {
    "tests/api/test_line_files.py": 1,
    "tests/api/test_parquet_target.py": 2,
    "tests/buffer/test_segments.py": 1,
    "tests/checkpoint/test_storage.py": 2,
    "tests/checkpoint/test_taking_over.py": 1,
    "tests/environment/test_cut_connections.py": 2,
    "tests/environment/test_master_link.py": 1,
    "tests/job/test_master.py": 1,
    "tests/job/test_query_handles.py": 1,
    "tests/link/test_streams.py": 1,
    "tests/spark/test_end_to_end.py": 1,
    "tests/spark/test_random_programs.py": 2,
    "tests/spark/test_results_in_use.py": 2,
    "tests/spark/test_spark_parts.py": 2,
    "tests/stream/test_key_index.py": 1,
    "tests/stream/test_keyed_store.py": 4,
    "tests/stream/test_query_shapes.py": 1,
    "tests/stream/test_row_log.py": 1,
    "tests/tools/test_bench_start.py": 1,
    "tests/tools/test_torture_parts.py": 1,
}
"""Sizes and times that are smaller in a test, and a few functions."""


def _is_turn(call: ast.Call) -> bool:
    """True if it lets an event loop go round once."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _sleeps(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "sleep" and not _is_turn(call)


def _patches_privately(call: ast.Call) -> bool:
    """True if it sets or deletes an attribute with a private name, given as text, through pytest's fixture."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("setattr", "delattr"):
        return False
    texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    names = [part for text in texts for part in text.split(".")]
    return any(name.startswith("_") and not name.startswith("__") for name in names)


def _counted(counts: Callable[[ast.Call], bool]) -> Counter[str]:
    found: Counter[str] = Counter()
    for module in modules("tests"):
        found[_path(module)] += sum(isinstance(node, ast.Call) and counts(node) for node in module.nodes)
    return +found


def _path(module: Module) -> str:
    return f"tests/{module.path.as_posix().rpartition('/tests/')[2]}"


def _beyond(found: Counter[str], allowed: dict[str, int]) -> str:
    return "\n".join(f"{path}: {count}" for path, count in found.items() if count > allowed.get(path, 0))


def test_nobody_sleeps() -> None:
    """A test awaits a condition with a deadline (`penstock.testing.wait_until`), or forces an order (`Sequencer`)."""
    assert not _beyond(_counted(_sleeps), IN_OTHER_PROCESSES | SLEEPS)


def test_nobody_patches_what_is_private() -> None:
    """A part that a test must be able to change is an argument, a field or a setting."""
    assert not _beyond(_counted(_patches_privately), PATCHES)


def test_both_are_noticed() -> None:
    """In any spelling that the tests have."""
    calls = [
        node
        for node in ast.walk(
            ast.parse("t.sleep(1)\nsleep(0.1)\nasyncio.sleep(0)\nm.setattr('a._b', 1)\nm.setattr(a, 'b', 1)")
        )
        if isinstance(node, ast.Call)
    ]
    assert [_sleeps(call) for call in calls] == [True, True, False, False, False]
    assert [_patches_privately(call) for call in calls] == [False, False, False, True, False]
