# SPDX-License-Identifier: Apache-2.0
"""Outcomes as text of two pages: five rows for the README, everything with its meaning for the benchmark page.

Each page has a line of its own before and behind what is written; everything else on it is somebody's text and
stays. Nothing written is a date, and lines have at most 118 characters.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.catalogue import IN_README, SECTIONS
from penstock.bench.measure import Outcome
from penstock.bench.tables import HEADINGS, cells, machine_line
from penstock.shuffle.errors import SettingError

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
_WIDTH = 118
_OWN = 4
"""So many of the headings are about Penstock alone."""


def readme_table(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """The five rows of the README; those that were not measured are left out."""
    chosen = [outcome for row in IN_README for outcome in outcomes if outcome.row == row]
    return "\n".join([*_table(chosen), "", machine_line(machine)])


def benchmark_page(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """A section for each kind of bench: how it is measured, its table, what each row means.

    Raises ValueError where two outcomes have one label.
    """
    labels = Counter(outcome.row.label for outcome in outcomes)
    twice = [label for label, count in labels.items() if count > 1]
    if twice:
        raise ValueError(f"two outcomes are called {', '.join(twice)}")
    lines = [machine_line(machine)]
    for section in SECTIONS:
        found = [outcome for outcome in outcomes if outcome.row.section == section]
        if found:
            lines += ["", f"## {section.title}", "", *_wrapped(section.text), "", *_table(found), ""]
            lines += [line for outcome in found for line in _meaning(outcome)]
    return "\n".join(lines)


def check_marks(path: Path) -> str:
    """The file's text; raises SettingError where its marks are missing."""
    text = path.read_text() if path.is_file() else ""
    if START not in text or END not in text:
        raise SettingError(f"{path}: there are no lines {START} and {END} to write between")
    return text


def write_pages(readme: Path, page: Path, outcomes: Sequence[Outcome], machine: dict[str, Any]) -> None:
    """Write both; raises before either is written where one has no marks or two outcomes have one label."""
    texts = {readme: readme_table(outcomes, machine), page: benchmark_page(outcomes, machine)}
    for path in texts:
        check_marks(path)
    for path, text in texts.items():
        before, _, rest = check_marks(path).partition(START)
        path.write_text(f"{before}{START}\n{text}\n{END}{rest.partition(END)[2]}")


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    headings = HEADINGS if any(outcome.spark for outcome in outcomes) else HEADINGS[:_OWN]
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return lines + ["| " + " | ".join(cells(outcome)[: len(headings)]) + " |" for outcome in outcomes]


def _meaning(outcome: Outcome) -> list[str]:
    return _wrapped(f"- **{outcome.row.label}**: {outcome.row.meaning}", indent="  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
