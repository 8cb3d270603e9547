# SPDX-License-Identifier: Apache-2.0
"""Outcomes as text of two pages: five rows for the README, everything with its meaning for the benchmark page.

Each page has a line of its own before and after what is written; everything else on it is somebody's text and stays.
A bench of some sections leaves the others as they are, if they are of a machine like this one. Nothing written is a
date, and lines have at most 118 characters.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock_bench.catalogue import IN_README, SECTIONS
from penstock_bench.measure import Outcome
from penstock_bench.tables import HEADINGS, cells, machine_line

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
_WIDTH = 118
_OWN = 4
"""So many of the headings are about Penstock alone."""


def readme_table(written: str, outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """The five rows of the README, those that were measured anew and those that are written there."""
    rows = _rows(written) | {outcome.row.label: _row(outcome, len(HEADINGS)) for outcome in outcomes}
    chosen = [rows[row.label] for row in IN_README if row.label in rows]
    return "\n".join([*_head(HEADINGS), *chosen, "", machine_line(machine)])


def benchmark_page(written: str, outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """A section for each kind of bench: how it is measured, its table, what each row means.

    Sections that were not measured are those that are written. Raises ValueError where two outcomes have one label.
    """
    labels = Counter(outcome.row.label for outcome in outcomes)
    twice = [label for label, count in labels.items() if count > 1]
    if twice:
        raise ValueError(f"two outcomes are called {', '.join(twice)}")
    texts = {text.partition("\n")[0]: text.strip() for text in f"\n{written}".split("\n## ")[1:]}
    for section in SECTIONS:
        found = [outcome for outcome in outcomes if outcome.row.section == section]
        if found:
            lines = [section.title, "", *_wrapped(section.text), "", *_table(found), ""]
            texts[section.title] = "\n".join([*lines, *(line for outcome in found for line in _meaning(outcome))])
    kept = [f"## {texts[section.title]}" for section in SECTIONS if section.title in texts]
    return "\n\n".join([machine_line(machine), *kept])


def check_marks(path: Path) -> str:
    """The file's text; raises SettingError where its marks are missing."""
    text = path.read_text() if path.is_file() else ""
    if START not in text or END not in text:
        raise SettingError(f"{path}: there are no lines {START} and {END} to write between")
    return text


def write_pages(readme: Path, page: Path, outcomes: Sequence[Outcome], machine: dict[str, Any]) -> None:
    """Write both, or raise: SettingError where one has no marks, or where figures of another machine would stay."""
    texts = {}
    for path, made in ((readme, readme_table), (page, benchmark_page)):
        before, _, rest = check_marks(path).partition(START)
        written, _, after = rest.partition(END)
        text = made(written, outcomes, machine)
        if "Measured on" in written and machine_line(machine) not in written and _keeps_some(text, outcomes):
            raise SettingError(f"{path}: its other figures are of another machine or version: measure all")
        texts[path] = f"{before}{START}\n{text}\n{END}{after}"
    for path, text in texts.items():
        path.write_text(text)


def _keeps_some(text: str, outcomes: Sequence[Outcome]) -> bool:
    """Tell whether there is a row that was not measured now."""
    return not _rows(text).keys() <= {outcome.row.label for outcome in outcomes} | {HEADINGS[0]}


def _rows(text: str) -> dict[str, str]:
    """The lines of tables by their labels."""
    return {line[2:].partition(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    headings = HEADINGS if any(outcome.spark for outcome in outcomes) else HEADINGS[:_OWN]
    return _head(headings) + [_row(outcome, len(headings)) for outcome in outcomes]


def _head(headings: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]


def _row(outcome: Outcome, columns: int) -> str:
    return "| " + " | ".join(cells(outcome)[:columns]) + " |"


def _meaning(outcome: Outcome) -> list[str]:
    return _wrapped(f"- **{outcome.row.label}**: {outcome.row.meaning}", indent="  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
