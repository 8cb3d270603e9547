# SPDX-License-Identifier: Apache-2.0
"""One frame of a job's progress: lines of text for a terminal, HTML for a notebook.

Rules: names are cut before figures are; if not even a short name has room beside them, whole columns go. Nothing
in a name is taken for markup or moves a cursor. A job that has ended is one line, and the sentence that names what
held it back. Pure.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from penstock.observe.progress import (
    Note,
    ProgressSnapshot,
    ShownVertex,
    short_bytes,
    short_count,
    short_time,
    whole_rates,
)

_HEADS = ("stage", "tasks", "done", "rows", "rows/s", "bytes", "busy")
_LEAST_NAME = 12
"""The columns that a stage's name gets at least; figures go before it is narrower."""
_EXPENDABLE = ("bytes", "done", "busy", "rows", "tasks", "rows/s")
"""The figures that go first, and next, on a narrow terminal."""
_NOTE_NAME = 40
_GAP = "  "
Rates = Sequence[float | None]


def frame_lines(job: ProgressSnapshot, rates: Rates, width: int) -> list[str]:
    """A job that runs: a line for it, what holds it back, and a line for each stage."""
    lines = [_cut_before(job.job, _GAP + short_time(job.seconds), width)]
    lines += [line for note in job.notes for line in _wrapped(note, width)]
    return lines + _table(job.vertices, rates, width)


def last_lines(job: ProgressSnapshot, width: int) -> list[str]:
    """A job that has ended: one line, and what held it back."""
    lines = [_cut_before(f"penstock {job.job}", f": {_ending(job)}", width)]
    return lines + [line for note in job.notes for line in _wrapped(note, width)]


def frame_html(job: ProgressSnapshot, rates: Rates) -> str:
    """The frame of a job that runs, as HTML."""
    heading = f"<b>{_escaped(job.job)}</b> {short_time(job.seconds)}"
    return f"<div>{heading}{_notes_html(job)}{_table_html(job, rates)}</div>"


def last_html(job: ProgressSnapshot) -> str:
    """A job that has ended; its stages unfold."""
    heading = f"<b>{_escaped(job.job)}</b>: {_ending(job)}"
    table = _table_html(job, whole_rates(job))
    return f"<div><details><summary>{heading}</summary>{table}</details>{_notes_html(job)}</div>"


def note_text(note: Note) -> str:
    """A note with nothing cut."""
    return f"{note.lead} {note.stage}: {note.reason}"


def plain(text: str) -> str:
    """The same without what a terminal would obey, in one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def cut(text: str, width: int) -> str:
    """The beginning of a text, in so many columns of a terminal; an ellipsis says that there is more."""
    from rich.cells import cell_len, set_cell_size

    text = plain(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def _ending(job: ProgressSnapshot) -> str:
    state, rows = job.state or "goes on", short_count(job.rows)
    return f"{state} after {short_time(job.seconds)}, {rows} rows read, {short_bytes(job.bytes)}"


def _cut_before(name: str, figures: str, width: int) -> str:
    """A name and what comes after it, of which only the name may be cut."""
    return cut(name, max(1, width - len(figures))) + figures


def _wrapped(note: Note, width: int) -> list[str]:
    text = f"{note.lead} {cut(note.stage, _NOTE_NAME)}: {plain(note.reason)}"
    return textwrap.wrap(text, max(20, width), subsequent_indent="  ", break_on_hyphens=False)


def _cells(vertex: ShownVertex, rate: float | None, *, ended: bool = False) -> dict[str, str]:
    return {
        "tasks": f"{vertex.total}" if ended else f"{vertex.running}/{vertex.total}",
        "done": "" if vertex.share is None else f"{vertex.share:.0%}",
        "rows": short_count(vertex.rows),
        "rows/s": "" if rate is None else short_count(rate),
        "bytes": short_bytes(vertex.bytes),
        "busy": "" if vertex.busy is None else f"{vertex.busy:.0%}",
    }


def _table(vertices: Sequence[ShownVertex], rates: Rates, width: int) -> list[str]:
    from rich.cells import cell_len, set_cell_size

    names = ["stage", *(plain(vertex.name) for vertex in vertices)]
    rows = [{head: head for head in _HEADS[1:]}, *map(_cells, vertices, rates)]
    heads, name_width = list(_HEADS[1:]), 0
    for dropped in (None, *_EXPENDABLE):
        heads = [head for head in heads if head != dropped]
        widths = {head: max(len(row[head]) for row in rows) for head in heads}
        name_width = width - sum(len(_GAP) + each for each in widths.values())
        if name_width >= _LEAST_NAME:
            break
    name_width = max(1, min(name_width, max(map(cell_len, names))))
    return [
        (
            set_cell_size(cut(name, name_width), name_width)
            + "".join(_GAP + row[head].rjust(widths[head]) for head in heads)
        ).rstrip()
        for name, row in zip(names, rows, strict=True)
    ]


def _escaped(text: str) -> str:
    return html.escape(plain(text))


def _notes_html(job: ProgressSnapshot) -> str:
    return "".join(f"<div>{_escaped(note_text(note))}</div>" for note in job.notes)


_NAME_STYLE = "text-align:left;max-width:40ch;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


def _table_html(job: ProgressSnapshot, rates: Rates) -> str:
    heads = "".join(f"<th>{head}</th>" for head in _HEADS)
    ended = bool(job.state)
    rows = (_row_html(vertex, _cells(vertex, rate, ended=ended)) for vertex, rate in _pairs(job, rates))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _pairs(job: ProgressSnapshot, rates: Rates) -> Iterator[tuple[ShownVertex, float | None]]:
    return zip(job.vertices, rates, strict=True)


def _row_html(vertex: ShownVertex, cells: Mapping[str, str]) -> str:
    name = _escaped(vertex.name)
    figures = "".join(f'<td style="white-space:nowrap">{cells[head]}</td>' for head in _HEADS[1:])
    return f'<tr><td style="{_NAME_STYLE}" title="{name}">{name}</td>{figures}</tr>'
