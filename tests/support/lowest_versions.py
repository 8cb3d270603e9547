# SPDX-License-Identifier: Apache-2.0
"""The lowest version of each library that `pyproject.toml` takes, as constraints of pip: CI tries them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("spark", "pandas", "delta", "kafka", "broker", "iceberg", "otel")
"""Those whose libraries the tests without Spark and processes use."""
_LOWEST = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)")


def lowest(project: Path) -> list[str]:
    """A line for each library of the project itself, and of these extras."""
    known = tomllib.loads(project.read_text())["project"]
    wanted = [*known["dependencies"], *(each for name in EXTRAS for each in known["optional-dependencies"][name])]
    found = {each: _LOWEST.match(each) for each in wanted}
    if unbound := [each for each, lower in found.items() if lower is None]:
        raise SystemExit(f"{project}: no lowest version in {', '.join(unbound)}")
    return sorted(f"{lower[1]}=={lower[2]}" for lower in found.values() if lower is not None)


if __name__ == "__main__":
    sys.stdout.write(",".join(EXTRAS) if "--extras" in sys.argv else "\n".join(lowest(Path("pyproject.toml"))) + "\n")
