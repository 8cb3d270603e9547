# SPDX-License-Identifier: Apache-2.0
"""Which parts of a plan run through Penstock: islands, and the rule when one pays. Pure.

An island is a connected part of a plan whose nodes all have a meaning here, with at least one Python function. What
neither calls a function nor exchanges rows is taken only between such nodes: at an island's ends Spark computes it
without the rows leaving the JVM. Below an island its leaves begin, which are Spark's, and may hold islands again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.islands.meanings import MEANINGS, why_left
from penstock.islands.plan_nodes import Path, PlanNode

PAYING, EVERYTHING = "paying", "everything"
"""The values of `spark.penstock.islands.placed`."""


@dataclass(frozen=True, slots=True)
class Island:
    """A part of a plan: its topmost node, all of its nodes by their paths, and the nodes that it reads."""

    root: PlanNode
    inside: frozenset[Path]
    leaves: tuple[PlanNode, ...]

    @property
    def nodes(self) -> Iterator[PlanNode]:
        """The nodes from the top."""
        return (node for node in self.root if node.path in self.inside)

    @property
    def functions(self) -> int:
        """The number of Python stages."""
        return sum(MEANINGS[node.kind].calls_function for node in self.nodes)

    @property
    def exchanges(self) -> int:
        """The number of nodes whose rows come over an exchange."""
        return sum(MEANINGS[node.kind].exchanges for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the rule: what must hold of an island that pays, and what is said where it does not."""

    holds: Callable[[Island], bool]
    otherwise: str


RULE: tuple[Condition, ...] = (
    Condition(
        lambda island: island.exchanges > 0, "no rows are exchanged before or between its functions: nothing to gain"
    ),
)
"""When an island pays, as far as its shape tells."""
LEAST_BYTES: Final = 128 << 20
TOO_FEW: Final = f"Spark expects less than {LEAST_BYTES >> 20} MiB in it: a job of its own costs more than it saves"
"""And as far as Spark's statistics of its leaves do."""


@dataclass(frozen=True, slots=True)
class Found:
    """The islands of a plan, and why nodes that one might look for are in none, by their paths."""

    islands: tuple[Island, ...]
    left: Mapping[Path, str]


def find_islands(plan: PlanNode, placed: str = PAYING, refused: Mapping[Path, str] | None = None) -> Found:
    """The islands of a plan, topmost first; `refused` are nodes that were tried in vain, with the reason."""
    known = dict(refused or {})
    islands: list[Island] = []
    left: dict[Path, str] = {}
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if why := _why(node, known):
            left[node.path] = why
            waiting.extend(reversed(node.children))
            continue
        island = _grown(node, known)
        if island is None:  # nothing of it calls a function
            left |= {item.path: "no function next to it" for item in _reached(node, known)}
            waiting.extend(reversed(_edge(node, known)))
            continue
        why = _why_not(island) if placed == PAYING else ""
        if why:
            left |= {item.path: why for item in island.nodes}
        else:
            islands.append(island)
        waiting.extend(reversed(island.leaves))
    return Found(tuple(islands), left)


def _why_not(island: Island) -> str:
    return next((condition.otherwise for condition in RULE if not condition.holds(island)), "")


def _why(node: PlanNode, refused: Mapping[Path, str]) -> str:
    return refused.get(node.path) or why_left(node)


def _grown(top: PlanNode, refused: Mapping[Path, str]) -> Island | None:
    """The island that begins at a node or below it, without ends that need not be ours."""
    root = top
    while not (MEANINGS[root.kind].calls_function or MEANINGS[root.kind].exchanges):
        (root,) = root.children
        if _why(root, refused):
            return None
    inside: set[Path] = set()
    leaves: list[PlanNode] = []
    if not _take(root, refused, inside, leaves):
        return None
    return Island(root, frozenset(inside), tuple(leaves))


def _take(node: PlanNode, refused: Mapping[Path, str], inside: set[Path], leaves: list[PlanNode]) -> bool:
    """Add a node with what is below it; tells whether a function is among it. What ends narrow becomes a leaf."""
    taken, own = [], []
    meaning = MEANINGS[node.kind]
    below = False
    for child in node.children:
        nodes: set[Path] = set()
        ends: list[PlanNode] = []
        found = not _why(child, refused) and _take(child, refused, nodes, ends)
        kept = found or any(MEANINGS[item.kind].exchanges for item in child if item.path in nodes)
        taken.append((nodes, ends) if kept else (set[Path](), [child]))
        own.append(kept)
        below = below or found
    if not (meaning.calls_function or meaning.exchanges or any(own)):
        return False
    inside.add(node.path)
    for nodes, ends in taken:
        inside |= nodes
        leaves += ends
    return below or meaning.calls_function


def _reached(node: PlanNode, refused: Mapping[Path, str]) -> Iterator[PlanNode]:
    """The nodes that are ours by themselves, from one of them on."""
    yield node
    for child in node.children:
        if not _why(child, refused):
            yield from _reached(child, refused)


def _edge(node: PlanNode, refused: Mapping[Path, str]) -> list[PlanNode]:
    """The nodes below those."""
    found: list[PlanNode] = []
    for child in node.children:
        found += [child] if _why(child, refused) else _edge(child, refused)
    return found
