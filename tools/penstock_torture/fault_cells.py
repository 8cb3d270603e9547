# SPDX-License-Identifier: Apache-2.0
"""The faults of the shuffle services' processes: which cells of the grid exist, how each is made, where it is tested.

`tests/processes/test_fault_grid.py` runs the cells of the grid, and `docs/testing.md` shows this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

PROCESSES: Final = ("manager", "worker", "external", "ess", "client")
GRID: Final = "grid"

HOW: Final = {
    "kill": "SIGKILL; the process is started again",
    "pause": "SIGSTOP for 20 s, then SIGCONT",
    "slow disk": "each read and write of its files sleeps for 20 ms",
    "disk full": "a tmpfs of 1 to 16 MB",
    "bit flip on disk": "one bit of each file of rows, or of the log",
    "bit flip on the wire": "a proxy turns one bit, on the way there or back",
    "duplicate push": "a proxy sends a pushed block twice",
    "reordered push": "a proxy sends a pushed block after the next one",
    "late commit": "a second writer of an attempt is the later one",
    "split": "a proxy resets all connections for a second",
}
"""Each fault, and how it is made."""
SERVED: Final = ("manager", "worker", "external", "environment", "objects")
OPERATOR: Final = {
    "disk unmounted": "one of its folders is away",
    "order of folders": "other than before",
    "index lost": "it is away at a start",
    "old copy of an index": "it is put back",
    "other owner": "of a folder, or who may write",
    "clock a day off": "or some years",
    "no space for the log": "or for the index",
}
MALICE: Final = {
    "at its largest": "each request, and 60 MB of it",
    "at its most often": "over many connections",
    "half sent": "but for its last byte",
    "by a stranger": "who has not proved who he is",
    "by another's user": "about others' partitions",
}


@dataclass(frozen=True, slots=True)
class FaultCell:
    """A fault of a process: `where` it is tested, `GRID` or a test's name; or `why` there is none."""

    fault: str
    process: str
    where: str = GRID
    why: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.fault} of {self.process}"

    @property
    def text(self) -> str:
        """Its words on the page."""
        if self.why:
            return f"none: {self.why}"
        return "grid" if self.where == GRID else f"`{self.where.partition('::')[2]}`"


_NO_PUSH = "nothing is pushed to it"
_CLIENTS = "tests/processes/test_client.py::"
_ESS = "tests/processes/test_ess_faults.py::"
_FAULTY_CLIENTS = "tests/processes/test_client_faults.py::"
_EXTERNAL = "tests/processes/test_external_faults.py::"
_FULL = "tests/processes/test_remote_full.py::"
_MANAGER = "tests/remote/test_manager_core.py::"
_REMOTE = "tests/processes/test_remote_faults.py::"

_ELSEWHERE = {
    ("kill", "client"): _CLIENTS + "test_a_killed_writer_s_rows_go_while_its_application_lives",
    ("pause", "client"): _FAULTY_CLIENTS + "test_a_client_that_stands_still_holds_up_nobody",
    ("slow disk", "client"): _FAULTY_CLIENTS + "test_a_client_with_a_slow_disk_gets_its_rows",
    ("disk full", "client"): _ESS + "test_a_full_disk_fails_the_task_and_the_next_one_fits",
    ("disk full", "manager"): _FULL + "test_a_manager_whose_disk_takes_nothing_goes_on_when_it_does",
    ("disk full", "worker"): _REMOTE + "test_a_full_disk_moves_files_and_a_second_one_is_an_error",
    ("disk full", "external"): _EXTERNAL + "test_a_full_disk_fails_the_partition_and_frees_its_files",
    ("bit flip on disk", "external"): _EXTERNAL + "test_damage_is_found",
    ("late commit", "external"): _EXTERNAL + "test_a_late_writer_commits_nothing",
    ("late commit", "worker"): "tests/remote/test_push_path.py::test_the_first_writer_that_commits_has_the_partition",
    ("late commit", "manager"): _MANAGER + "test_the_first_to_finish_has_it_and_late_ones_are_stale",
    ("bit flip on disk", "manager"): _MANAGER + "test_the_log_survives_a_kill_and_refuses_damage",
}
_NONE = {
    ("disk full", "ess"): "tasks write its files, on the disk of `client`",
    ("bit flip on disk", "client"): "it keeps none",
    ("bit flip on the wire", "client"): "as of the process at the other end",
    ("split", "client"): "as of the process at the other end",
    ("late commit", "ess"): "attempts have files of their own there",
    **{
        (fault, process): _NO_PUSH
        for fault in ("duplicate push", "reordered push")
        for process in ("manager", "external", "ess")
    },
    ("duplicate push", "client"): "as of `worker`, to which it pushes",
    ("reordered push", "client"): "as of `worker`, to which it pushes",
    ("late commit", "client"): "as of the process that is told",
}

_SLIP = "tests/processes/test_operator.py::test_an_operator_s_slip_costs_nobody_a_row"
_ENEMY = "tests/processes/test_malice.py::test_an_enemy_costs_others_little"
_ELSEWHERE |= {
    **{(fault, process): _SLIP for fault in OPERATOR for process in ("manager", "worker", "external", "objects")},
    ("disk unmounted", "environment"): "tests/environment/test_folders.py::"
    "test_a_broken_directory_is_passed_over_and_none_is_an_error",
    ("other owner", "environment"): "tests/environment/test_folders.py::test_partitions_are_spread_and_private",
    **{(fault, process): _ENEMY for fault in MALICE for process in ("manager", "worker", "external")},
    ("by a stranger", "environment"): "tests/processes/test_limits.py::test_silent_connections_lock_no_task_out",
}
_ONE_FOLDER = "it has one folder"
_NONE |= {
    ("disk unmounted", "manager"): "as of `index lost`: its folder has nothing else",
    **{("order of folders", process): _ONE_FOLDER for process in ("manager", "objects")},
    ("order of folders", "environment"): "its files are of one run",
    **{
        (fault, process): "it has no index that outlives it"
        for fault in ("index lost", "old copy of an index", "no space for the log")
        for process in ("environment", "objects")
    },
    ("other owner", "objects"): "the store says who may write to it",
    **{("clock a day off", process): "it reads no time of the day" for process in ("environment", "objects")},
    **{
        (fault, "environment"): "those who have its application's secret are its own"
        for fault in MALICE
        if fault != "by a stranger"
    },
    **{(fault, "objects"): "no process of ours is asked" for fault in MALICE},
}


def _cells(faults: Iterable[str], processes: Sequence[str]) -> tuple[FaultCell, ...]:
    return tuple(
        FaultCell(fault, process, _ELSEWHERE.get((fault, process), GRID), _NONE.get((fault, process), ""))
        for fault in faults
        for process in processes
    )


TABLES: Final = ((HOW, PROCESSES), (OPERATOR, SERVED), (MALICE, SERVED))
CELLS: Final = tuple(cell for faults, processes in TABLES for cell in _cells(faults, processes))
GRID_CELLS: Final = tuple(cell for cell in CELLS if cell.where == GRID and not cell.why)


def as_table() -> str:
    """The tables of `docs/testing.md`."""
    lines: list[str] = []
    reasons: dict[str, int] = {}
    for title, (faults, processes) in zip(("fault", "operator", "malice"), TABLES, strict=True):
        lines += [f"| {title} | how | " + " | ".join(processes) + " |", "|---" * (len(processes) + 2) + "|"]
        for fault, how in faults.items():
            shown = [_shown(cell, reasons) for cell in CELLS if cell.fault == fault]
            lines.append(f"| {fault} | {how} | " + " | ".join(shown) + " |")
        lines.append("")
    lines += [f"{number}. {text}" for text, number in reasons.items()]
    return "\n".join(lines) + "\n"


def _shown(cell: FaultCell, reasons: dict[str, int]) -> str:
    if cell.where == GRID and not cell.why:
        return "grid"
    number = reasons.setdefault(cell.text, len(reasons) + 1)
    return f"{'-' if cell.why else 'test'} [{number}]"
