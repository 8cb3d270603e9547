# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios under the schemes, one after the other, and writes the report."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.errors import SettingError
from penstock_lab.options import LabOptions
from penstock_lab.report import COLUMNS, as_json, row, write
from penstock_lab.runs import RunFigures, run
from penstock_lab.verdicts import verdicts


def run_backpressure(options: LabOptions, folder: Path, *, json: bool = False) -> int:
    """Run it all; the exit code. Raises SettingError where the folder can't be written."""
    _try_folder(folder)
    runs: dict[tuple[str, str], RunFigures] = {}
    wanted = [(scenario, scheme) for scenario in options.scenarios for scheme in options.schemes]
    progress = Console(file=sys.stderr)
    for number, (scenario, scheme) in enumerate(wanted, 1):
        with progress.status(f"{number} of {len(wanted)}: scenario {scenario} under {scheme}"):
            found = runs[scenario, scheme] = run(scenario, scheme, options)
        kept = f"the healthy consumer keeps {found.share:.0%} of {found.lone_rate:.0f} batches/s"
        progress.print(f"{number} of {len(wanted)}: scenario {scenario} under {scheme}: {kept}", highlight=False)
    page, figures = write(folder, runs, options)
    if json:
        sys.stdout.write(as_json(runs, options))
    else:
        _show(runs, options)
    progress.print(f"written: {page}, {figures}", highlight=False, soft_wrap=True)
    return 0


def _show(runs: dict[tuple[str, str], RunFigures], options: LabOptions) -> None:
    console = Console(width=max(Console().width, 150))
    for scenario in options.scenarios:
        table = Table(*COLUMNS, title=f"scenario {scenario}", title_justify="left")
        for scheme in options.schemes:
            table.add_row(*row(runs[scenario, scheme]))
        console.print(table)
    for verdict in verdicts(runs, options):
        why = "" if verdict.holds else f" Perhaps because {verdict.why}."
        console.print(
            f"{'yes' if verdict.holds else 'NO '}  {verdict.text}: {verdict.figures}.{why}", highlight=False
        )


def _try_folder(folder: Path) -> None:
    """A minute of work must not end in a report that can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".penstock-lab"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingError(f"the report can't be written to {folder}: {error}") from None
