# SPDX-License-Identifier: Apache-2.0
"""Compares this checkout with another one: rows of the bench in turns, by the CPU seconds of all processes.

    python -m penstock_bench.two_trees ../other --turns 20 --rows 10000000

The other checkout has its own `.venv`, as `make setup` makes it. Each side is one session that lives on, and the two
take turns at going first. A share is the median of the turns' differences by the other's median; the interval is that
of the median, by drawing from the turns again and again. Beside a row's way the seconds are those of its way. `only`
tells rows by parts of their names, and with `results` a call goes on after one that was ended.
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

from penstock_bench.mock_broker import broker_process
from penstock_bench.processor import interval_of
from penstock_bench.tree_queries import IN, OUT, feed

_TOOLS = Path(__file__).resolve().parents[1]
_COLUMNS = "{:<34}  {:>9}  {:>9}  {:>8}  {:>18}  {:>9}  {:>9}"
_HEADS = ("row", "CPU s", "other's", "more", "95 % interval", "wall s", "other's")
Figures = tuple[float, float]
Turn = tuple[Figures, Figures]
"""Of this checkout and of the other one."""


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
        servers = stack.enter_context(broker_process((IN, OUT)))
        feed(servers)
        given = (str(options.rows), servers)
        ours, theirs = (stack.enter_context(_side(python, *given)) for python in pythons)
        rows = [row for row in ours.rows if not options.only or any(part in row for part in options.only)]
        turns = {row: _read_turns(options.results, row) for row in rows}
        for turn in range(options.turns + 1):
            for row in rows:
                if len(turns[row]) < options.turns:
                    found = {side: side.run(row) for side in ((ours, theirs) if turn % 2 else (theirs, ours))}
                    if turn:  # the first one here is not counted
                        _keep(turns[row], (found[ours], found[theirs]), row, options.results)
    _say(*_HEADS)
    for row in rows:
        _show(row, turns[row])
    return 0


def _read_turns(path: Path | None, row: str) -> list[Turn]:
    """Those of a row that a file has."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else ()
    return [(ours, theirs) for name, ours, theirs in map(json.loads, lines) if name == row]


def _keep(turns: list[Turn], turn: Turn, row: str, path: Path | None) -> None:
    turns.append(turn)
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps([row, *turn]) + "\n")


def _show(row: str, turns: Sequence[Turn]) -> None:
    here, there = np.array(turns).transpose(1, 0, 2)
    base = float(np.median(there[:, 0]))
    shares = (100 * (here[:, 0] - there[:, 0]) / base).tolist()
    low, high = interval_of(shares)
    cpu, wall = np.median(here, axis=0)
    cells = (f"{cpu:.2f}", f"{base:.2f}", f"{np.median(shares):.1f} %", f"{low:.1f} to {high:.1f} %")
    _say(row, *cells, f"{wall:.3f}", f"{np.median(there[:, 1]):.3f}")


def _say(*cells: str) -> None:
    sys.stdout.write(_COLUMNS.format(*cells) + "\n")
    sys.stdout.flush()


@contextmanager
def _side(python: Path, *given: str) -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        process = subprocess.Popen(
            [str(python), "-m", "penstock_bench.tree_rows", folder, *given],
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
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help="rows with one of these in their names")
    parser.add_argument("--results", type=Path, help="a file with a line for each turn: those that are there count")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
