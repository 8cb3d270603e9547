# SPDX-License-Identifier: Apache-2.0
"""A report: the page as one file, with the jobs in it, to be sent on and opened anywhere.

The file loads nothing: scripts and styles are in it, and its policy allows these alone, by their hashes. Jobs are
JSON in which no `<` stands, so nothing of a user's can end the element that holds it, or be HTML.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import SettingError

_STATIC = Path(__file__).resolve().with_name("static")
SCRIPTS = ("uplot.js", "graph.js", "charts.js", "tables.js", "flame.js", "page.js")
STYLES = ("uplot.css", "page.css")


def report(documents: Sequence[dict[str, Any]]) -> str:
    """The text of a report of these jobs, the first one shown first."""
    data = json.dumps(list(documents), separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=str)
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    begin, end = _frame()
    return f'{begin}<script type="application/json" id="told">{data}</script>{end}'


def write_report(path: Path, documents: Sequence[dict[str, Any]]) -> None:
    """Write a report; a reader of the path sees the old file or the new one. Raises SettingError."""
    with _part_of(path) as part:
        part.write_text(report(documents), encoding="utf-8")
        part.replace(path)


def refuse_place(path: Path) -> None:
    """Raise SettingError where no report could be written, before the work that it is to be about."""
    with _part_of(path) as part:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        part.touch()


@contextlib.contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A file beside the path, in a folder that is made; it is gone at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise SettingError(f"the report {path} can't be written: {error}") from error


@functools.lru_cache
def _frame() -> tuple[str, str]:
    """The page's own part, ahead of the jobs and after them."""
    scripts = [(_STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS]
    styles = [(_STATIC / name).read_text(encoding="utf-8") for name in STYLES]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {' '.join(map(_hash, styles))};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = (_STATIC / "index.html").read_text(encoding="utf-8")
    head, _, body = page.partition("<!-- head -->")
    body = body.partition("<!-- /head -->")[2]
    middle, _, foot = body.partition("<!-- scripts -->")
    foot = foot.partition("<!-- /scripts -->")[2]
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    begin = head + meta + "".join(f"<style>{style}</style>" for style in styles) + middle
    return begin, "".join(f"<script>{script}</script>" for script in scripts) + foot


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
