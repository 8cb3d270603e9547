# SPDX-License-Identifier: Apache-2.0
"""The picture of a graph: well-formed, all stages and exchanges in it, nothing obeyed, nothing asked for."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pyarrow as pa

from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.graph.drawing import MOST_STAGES, StageShares, draw_graph
from penstock.operators.exchanges import exchange
from penstock.shuffle import PartitionKind

SCHEMA = pa.schema([("id", pa.int64())])
KINDS = (PartitionKind.PIPELINED_BOUNDED, PartitionKind.BLOCKING_SORT_MERGE, PartitionKind.HYBRID_FULL)


def diamond(name: str = "read") -> JobGraph:
    """One source that two stages read, which a fourth one joins; exchanges of all kinds."""
    vertices = tuple(JobVertex(number, f"{name}{number}", number + 1, SCHEMA) for number in range(4))
    pairs = ((0, 1), (0, 2), (1, 3), (2, 3))
    edges = tuple(
        JobEdge(number, *pair, exchange("rebalance"), SCHEMA, KINDS[number % 3], "local")
        for number, pair in enumerate(pairs)
    )
    return JobGraph("a <job>", vertices, edges, (3,))


def boxes(picture: str) -> list[tuple[float, float]]:
    """The places of the boxes."""
    return [(float(x), float(y)) for x, y in re.findall(r'<rect x="(\d+)" y="(\d+)"', picture)]


def test_all_stages_and_exchanges_are_drawn() -> None:
    """Stages below those that they read, beside each other where neither reads the other; lines by their kind."""
    picture = draw_graph(diamond())
    ET.fromstring(picture)  # noqa: S314 - it is our own
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = boxes(picture)
    assert y0 < y1 == y2 < y3
    assert x1 < x0 == x3 < x2
    assert picture.count("<path") == 4
    assert re.findall(r'stroke-dasharray="([\d ]+)"', picture) == ["7 4", "2 4"]
    for words in ("read0", "stage 3, 4 tasks", "rebalance, blocking_sort_merge, local, 1 -&gt; 3"):
        assert words in picture


def test_shares_colour_the_stages() -> None:
    """Busy ones red, those that wait grey; the one that holds the job back is framed, and says so in words."""
    picture = draw_graph(diamond(), {0: StageShares(0.1, 0.9), 1: StageShares(0.98, 0.0)}, 1)
    fills = re.findall(r'<rect [^>]*fill="(#\w+)"', picture)
    assert fills[0][1:3] == fills[0][3:5] == fills[0][5:7]
    assert fills[1].startswith("#f5")
    assert int(fills[1][3:5], 16) < 0x80
    assert "busy 98%, back-pressured 0%, holds the others back" in picture
    assert picture.count('stroke-width="3"/>') == 1


def test_names_are_escaped_and_cut() -> None:
    """A name may hold markup, a line end or two hundred characters: the box shows its beginning, the pointer all."""
    name = "<script>alert('&')</script>\n" + "x" * 200
    picture = draw_graph(diamond(name))
    root = ET.fromstring(picture)  # noqa: S314 - it is our own
    assert "<script" not in picture
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "a <job>"
    assert name.replace("\n", "?") + "0" in titles
    shown = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert max(map(len, shown)) < 60
    assert not re.search(r"(href|src|url\()", picture.replace("http://www.w3.org/2000/svg", ""))


def test_very_many_stages_are_not_drawn() -> None:
    """The text is easier to read then."""
    vertices = tuple(JobVertex(number, "s", 1, SCHEMA) for number in range(MOST_STAGES + 1))
    assert draw_graph(JobGraph("many", vertices, ())) == ""
    assert draw_graph(JobGraph("none", (), ())) == ""
