# SPDX-License-Identifier: Apache-2.0
"""There is one form of a stored partition: what a second one would need is looked for in the code."""

from __future__ import annotations

import ast
import re

from source import PACKAGE

ROOMS = ("partition", "environment", "services", "buffer", "record")
"""The packages that store and read partitions."""


def test_there_are_two_storage_magics() -> None:
    """Data files and indexes are all that a partition leaves on a disk; a magic is eight capitals as bytes."""
    found = {
        node.value
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and re.fullmatch(b"[A-Z]{8}", node.value)
    }
    assert found == {b"PENSTDAT", b"PENSTIDX"}
