# SPDX-License-Identifier: Apache-2.0
"""Makes `docs/settings.md` out of the settings' classes; run it after changing them."""

from __future__ import annotations

import inspect
from pathlib import Path

from penstock.settings import KEYS, Settings, parse_bool, parse_seconds, parse_size

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

<!-- made by tests/support/settings_page.py -->

All settings are the SparkSession's conf, read once when a job starts. An unknown key under `spark.penstock.` is
an error that names the nearest known one. `mode=` and `service=` of an edge override the first two settings
below for that edge.

Sizes are written as in Spark (`64m`, `256k`, `1048576`), times likewise (`100ms`, `10s`, `5min`; a bare number
is seconds).

**When not to use them:** to make one edge different (say so at the edge), or to tune before measuring: the
defaults are what the benchmarks run with.
"""


def render() -> str:
    """The page's text."""
    parts = [INTRODUCTION]
    concern = ""
    settings = Settings()
    for key, (part, name, parse) in KEYS.items():
        if part != concern:
            concern = part
            kind = type(getattr(settings, part))
            heading = f"\n## {part}\n\n{inspect.cleandoc(kind.__doc__)}\n"
            parts += [heading, "\n| key | default | takes |\n|---|---|---|\n"]
        parts.append(f"| `{key}` | {_show(getattr(getattr(settings, part), name), parse)} | {_takes(parse)} |\n")
    return "".join(parts)


def _show(value: object, parse: object) -> str:
    if parse is parse_size:
        assert isinstance(value, int)
        if not value:
            return "`0`"
        return f"`{value >> 20}m`" if value % (1 << 20) == 0 else f"`{value >> 10}k`"
    if parse is parse_seconds:
        return f"`{value:g}s`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else "(empty)"


def _takes(parse: object) -> str:
    names = {parse_size: "a size", parse_seconds: "a time", parse_bool: "`true` or `false`", str: "text"}
    return names.get(parse, "a whole number")  # type: ignore[call-overload]


if __name__ == "__main__":
    PAGE.write_text(render())
