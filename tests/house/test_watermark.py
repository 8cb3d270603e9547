# SPDX-License-Identifier: Apache-2.0
"""One module reads the number of a watermark: a second rule of what is late or over loses rows between steps."""

from __future__ import annotations

import ast

from penstock.stream.watermark import Watermark
from source import modules

RULES = "penstock.stream.watermark"
NUMBERS = {
    **{field: set() for field in Watermark.__dataclass_fields__},
    "milliseconds": {"penstock.stream.state.step"},  # PySpark's processors are told them, and register timers by them
    "unix_seconds": {"penstock.stream.event_time"},  # which shows them
    "moments": {"penstock.stream.lateness"},  # which stores them
    "later_of": {"penstock.stream.window_aggregate"},  # of the panes whose next window is asked for
}
"""The numbers that a watermark gives, and the modules that may ask for each."""
PLACES = ("watermark", "passed")


def test_no_other_module_reads_the_number() -> None:
    """Neither the field itself, nor what the type gives out but to those named here."""
    found = [
        f"{module.name}:{node.lineno}: {node.attr}"
        for module in modules("src/penstock")
        for node in module.nodes
        if isinstance(node, ast.Attribute) and module.dotted not in {RULES, *NUMBERS.get(node.attr, {module.dotted})}
    ]
    assert not found, "\n".join(found)


def test_nobody_takes_a_watermark_as_a_number() -> None:
    """An argument or a field of that name is of the type; one maker takes a number too, and keeps a watermark."""
    found = []
    for module in modules("src/penstock/stream"):
        for node in module.nodes:
            if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                if name.rpartition(".")[2].strip("_") in PLACES and "int" in ast.unparse(node.annotation).split():
                    found.append(f"{module.name}: {name}: {ast.unparse(node.annotation)}")
    assert found == ["src/penstock/stream/watermarks.py: watermark: Watermark | int"], "\n".join(found)
