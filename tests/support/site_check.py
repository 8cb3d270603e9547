# SPDX-License-Identifier: Apache-2.0
"""Looks through a built site: links that lead nowhere, and whatever a browser would ask another host for.

    python tests/support/site_check.py FOLDER

Prints what it finds, a line each; the exit code is 1 if there is anything. `make docs` calls it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = frozenset(
    {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
)
"""The kinds of `<link>` for which a browser asks somebody."""
SOURCES = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
}
"""The attributes whose files are fetched to show the page."""
IN_STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """One page: what it fetches, where it links to, and the places in it that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        known = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.places |= {known[name] for name in ("id", "name") if known.get(name)}
        self.fetched += [known[name] for name in SOURCES.get(tag, ()) if known.get(name)]
        self.fetched += IN_STYLE.findall(known.get("style", ""))
        if tag == "link" and LOADING & set(known.get("rel", "").split()):
            self.fetched.append(known.get("href", ""))
        elif tag == "a" and known.get("href"):
            self.links.append(known["href"])

    def handle_data(self, data: str) -> None:
        """The text of an element; of a style sheet what it asks for."""
        if self._in_style:
            self.fetched += IN_STYLE.findall(data)


def problems(folder: Path) -> Iterator[str]:
    """All that is wrong with the site in this folder."""
    for path in sorted(folder.rglob("*.html")):
        page = _page(path)
        title = path.relative_to(folder)
        yield from (f"{title} asks another host: {each}" for each in page.fetched if _is_elsewhere(each))
        local = [each for each in (*page.fetched, *page.links) if not _is_elsewhere(each)]
        yield from (f"{title} leads nowhere: {each}" for each in dict.fromkeys(local) if not _is_there(path, each))
    for path in sorted(folder.rglob("*.css")):
        asked = IN_STYLE.findall(path.read_text(errors="replace"))
        yield from (f"{path.relative_to(folder)} asks another host: {each}" for each in asked)


@cache
def _page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "file")


def _is_there(page: Path, address: str) -> bool:
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    if not target.is_file():
        return False
    place = unquote(parts.fragment)
    return not place or target.suffix != ".html" or place in _page(target).places


def main(folder: str) -> int:
    """Print all problems; the exit code."""
    found = list(problems(Path(folder)))
    sys.stdout.writelines(f"{each}\n" for each in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
