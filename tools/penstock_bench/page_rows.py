# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark page: sections, and rows in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the benchmark page: a heading, and how its rows are measured."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row: `meaning` says what runs and what the figure is."""

    label: str
    meaning: str
    section: Section
