# SPDX-License-Identifier: Apache-2.0
"""A job graph as a picture for notebooks: SVG that asks for nothing else, with stages as boxes, sources on top.

Rules: all names are escaped, and cut to their box; the whole name is what the pointer shows. An exchange is a line
with its partitioner, kind and service: whole where it is pipelined, dashed where rows are stored first, dotted where
it is hybrid. A graph of very many stages is not drawn: its text is easier to read. Pure.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.graph.explanation import edge_title
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex

MOST_STAGES = 60
_WIDTH, _HEIGHT = 300, 46
_ACROSS, _DOWN = 40, 52
"""Room between two boxes."""
_MARGIN = 6
_NAME, _LABEL = 44, 52
"""So many characters of a name, and of an exchange's."""
_STYLE = 'font-family="sans-serif" font-size="12"'
_HELD = "#c0392b"


@dataclass(frozen=True, slots=True)
class StageShares:
    """The shares of its time in which a stage worked, and waited for room at its output."""

    busy: float
    pressed: float


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.x + _WIDTH / 2


def draw_graph(graph: JobGraph, shares: Mapping[int, StageShares] | None = None, held: int | None = None) -> str:
    """The picture; `shares` colour the stages, and `held` is the one that holds the job back. Empty for too many."""
    if not graph.vertices or len(graph.vertices) > MOST_STAGES:
        return ""
    boxes = _placed(graph)
    width = max(box.x for box in boxes.values()) + _WIDTH + _MARGIN
    height = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" role="img" style="max-width:100%" {size} {_STYLE}>']
    parts.append(f"<title>{html.escape(_printable(graph.name))}</title>")
    parts += [_line(graph, edge, boxes) for edge in graph.edges]
    for vertex in graph.vertices:
        share = (shares or {}).get(vertex.id)
        parts.append(_box(vertex, boxes[vertex.id], share, is_held=vertex.id == held))
    parts += [_label(graph, edge, boxes) for edge in graph.edges]
    return "".join(parts) + "</svg>"


def _placed(graph: JobGraph) -> dict[int, _Box]:
    """Each stage below all that it reads; of one row those that read what stands on the left are on the left."""
    depths: dict[int, int] = {}
    for vertex in graph.vertices:  # in order: a stage comes after those that it reads
        depths[vertex.id] = (
            max((depths.get(edge.producer, -1) for edge in graph.inputs_of(vertex.id)), default=-1) + 1
        )
    rows: dict[int, list[int]] = {}
    for vertex in graph.vertices:
        rows.setdefault(depths[vertex.id], []).append(vertex.id)
    widest = max(map(len, rows.values()))
    boxes: dict[int, _Box] = {}
    for depth in sorted(rows):
        row = sorted(rows[depth], key=lambda number: _pull(graph, number, boxes))
        left = _MARGIN + (widest - len(row)) * (_WIDTH + _ACROSS) / 2
        for place, number in enumerate(row):
            boxes[number] = _Box(left + place * (_WIDTH + _ACROSS), _MARGIN + depth * (_HEIGHT + _DOWN))
    return boxes


def _pull(graph: JobGraph, vertex: int, boxes: Mapping[int, _Box]) -> float:
    above = [boxes[edge.producer].x for edge in graph.inputs_of(vertex) if edge.producer in boxes]
    return sum(above) / len(above) if above else 0.0


def _box(vertex: JobVertex, box: _Box, shares: StageShares | None, *, is_held: bool) -> str:
    tasks = f"stage {vertex.id}, {vertex.parallelism} task{'s' if vertex.parallelism != 1 else ''}"
    fill = "#f4f6f8"
    if shares is not None:
        tasks += f", busy {shares.busy:.0%}, back-pressured {shares.pressed:.0%}"
        fill = _colour(shares)
    tasks += ", holds the others back" if is_held else ""
    border = f'stroke="{_HELD}" stroke-width="3"' if is_held else 'stroke="#708090"'
    place = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"'
    return (
        f'<g><title>{html.escape(_printable(vertex.name))}</title><rect {place} fill="{fill}" {border}/>'
        + _text(box.middle, box.y + 19, _cut(vertex.name, _NAME), 'font-weight="bold" fill="#111"')
        + _text(box.middle, box.y + 36, tasks, 'font-size="11" fill="#222"')
        + "</g>"
    )


def _line(graph: JobGraph, edge: JobEdge, boxes: Mapping[int, _Box]) -> str:
    start, end = boxes[edge.producer], boxes[edge.consumer]
    top, bottom = start.y + _HEIGHT, end.y
    bend = (bottom - top) / 2
    path = (
        f"M{start.middle:.0f} {top:.0f}C{start.middle:.0f} {top + bend:.0f} {end.middle:.0f} {bottom - bend:.0f}"
        f" {end.middle:.0f} {bottom:.0f}"
    )
    label = edge.kind.label
    dashes = ' stroke-dasharray="2 4"' if "hybrid" in label else ' stroke-dasharray="7 4"'
    style = 'fill="none" stroke="#708090" stroke-width="2"' + ("" if label.startswith("pipelined") else dashes)
    return f'<path d="{path}" {style}><title>{html.escape(_printable(edge_title(graph, edge)))}</title></path>'


def _label(graph: JobGraph, edge: JobEdge, boxes: Mapping[int, _Box]) -> str:
    start, end = boxes[edge.producer], boxes[edge.consumer]
    siblings = [each.id for each in graph.inputs_of(edge.consumer)]
    shift = 12 * (siblings.index(edge.id) % 3) if start.middle == end.middle else 0
    # Nearer to the producer where lines meet, so that labels of several inputs stand apart.
    share = 0.5 if len(siblings) == 1 else 0.3
    x = start.middle + (end.middle - start.middle) * share
    y = start.y + _HEIGHT + (end.y - start.y - _HEIGHT) * 0.5 + shift + 3
    style = 'font-size="10" fill="#334" stroke="#fff" stroke-width="3" paint-order="stroke"'
    return _text(x, y, _cut(edge_title(graph, edge), _LABEL), style)


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" {style}>{html.escape(text)}</text>'


def _colour(shares: StageShares) -> str:
    """From nearly white to red as a stage works more; grey as it waits for room more."""
    pressed, busy = min(1.0, shares.pressed), min(1.0, shares.busy)
    if pressed > busy:
        level = round(240 - 90 * pressed)
        return f"#{level:02x}{level:02x}{level:02x}"
    fade = round(245 - 125 * busy)
    return f"#f5{fade:02x}{fade:02x}"


def _cut(text: str, length: int) -> str:
    text = _printable(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
