# SPDX-License-Identifier: Apache-2.0
"""Compares this checkout with another one: rows of the bench in turns, by the CPU seconds of all processes.

    python -m penstock_bench.two_trees ../other --turns 20 --rows 10000000

The other checkout has its own `.venv`, as `make setup` makes it. Each side is one session that lives on, and the two
take turns at going first. A share is the median of the turns' differences by the other's median; the interval is that
of the median, by drawing from the turns again and again. `only` tells rows by a part of their names.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from penstock_bench.processor import interval_of

_TOOLS = Path(__file__).resolve().parents[1]
_COLUMNS = "{:<34}  {:>9}  {:>9}  {:>8}  {:>18}  {:>9}  {:>9}"
_HEADS = ("row", "CPU s", "other's", "more", "95 % interval", "wall s", "other's")
Figures = tuple[float, float]


class Side:
    """One checkout's session, which runs a row when it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.rows: list[str] = self._answer()

    def run(self, row: str) -> Figures:
        """Run a row; its CPU seconds and the seconds that it took."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write(row + "\n")
        self._process.stdin.flush()
        cpu, wall = self._answer()
        return float(cpu), float(wall)

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"a side has ended: exit code {self._process.wait()}; its errors are above")
        found: list[str] = json.loads(line)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; gives the exit code."""
    options = _parsed(arguments)
    with ExitStack() as stack:
        pythons = (Path(sys.executable), options.other.resolve() / ".venv" / "bin" / "python")
        ours, theirs = (stack.enter_context(_side(python, options.rows)) for python in pythons)
        rows = [row for row in ours.rows if options.only in row]
        _say(*_HEADS)
        for row in rows:
            _compare(row, ours, theirs, options.turns)
    return 0


def _compare(row: str, ours: Side, theirs: Side, turns: int) -> None:
    found: dict[Side, list[Figures]] = {ours: [], theirs: []}
    for turn in range(turns + 1):
        for side in (ours, theirs) if turn % 2 else (theirs, ours):
            found[side].append(side.run(row))
    here, there = (np.array(found[side][1:]) for side in (ours, theirs))  # the first turn is not counted
    base = float(np.median(there[:, 0]))
    shares = (100 * (here[:, 0] - there[:, 0]) / base).tolist()
    low, high = interval_of(shares)
    cpu, wall = np.median(here, axis=0)
    cells = (f"{cpu:.2f}", f"{base:.2f}", f"{np.median(shares):.1f} %", f"{low:.1f} to {high:.1f} %")
    _say(row, *cells, f"{wall:.2f}", f"{np.median(there[:, 1]):.2f}")


def _say(*cells: str) -> None:
    sys.stdout.write(_COLUMNS.format(*cells) + "\n")
    sys.stdout.flush()


@contextmanager
def _side(python: Path, rows: int) -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        process = subprocess.Popen(
            [str(python), "-m", "penstock_bench.tree_rows", folder, str(rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_TOOLS)},
        )
        try:
            yield Side(process)
        finally:
            process.communicate()


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="two_trees", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout, with its .venv")
    parser.add_argument("--turns", type=int, default=20, help="turns of each row (20)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the exchanges (10,000,000)")
    parser.add_argument("--only", default="", help="rows with this in their names")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
