# SPDX-License-Identifier: Apache-2.0
"""The pages: short lines, decisions in one form, figures that stand in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.api.streaming.options import QUERY_OPTIONS
from penstock.settings import KEYS
from source import ROOT, modules

LONGEST = 120
LONGEST_CODE = 85
"""Beyond that the site cuts a line of code at 1400 pixels; this is for the page that all see."""
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
TEMPLATE = DECISIONS[0]
SECTIONS = ("Question", "Decision", "Why", "Cost", "What would change it")
STATE = re.compile(r"proposed|accepted(; .+)?|replaced by \[\d{4}\]\([\w-]+\.md\)(, .+)?")
TABLE = re.compile(r"<!-- bench:start -->\n(.*?)<!-- bench:end -->", re.DOTALL)


OWN_WORDS = {
    r"(?<!-)\banew\b": "restarts, starts over, again",
    r"\bmade again\b": "recomputed, rebuilt, opened again",
    r"\bwait(s|ing)? for room\b": "back-pressured",
    r"\bas figures\b": "as a table",
}
"""Words of ours for what Spark's and Flink's users call otherwise, and their words for it."""


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_lines_are_short(document: Path) -> None:
    """Tables too: a cell that does not fit is a sentence beside the table. The front page's code fits the site's."""
    long, in_code = [], False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        in_code ^= line.startswith("```")
        if len(line) > (LONGEST_CODE if in_code and document.name == "README.md" else LONGEST):
            long.append(f"{_named(document)}:{number} has {len(line)} characters")
    assert not long, "\n".join(long)


@pytest.mark.parametrize("page", DECISIONS[1:], ids=_named)
def test_a_decision_has_the_form_of_its_template(page: Path) -> None:
    """Number and sentence, the state, then the five sections in order and none empty; the list knows it."""
    text = page.read_text()
    number = page.name[:4]
    title = re.match(rf"# {number}: (.+)\n\n\*\*State:\*\* (.+)\n\n## Question\n", text)
    assert title, "the head is not that of the template"
    assert STATE.fullmatch(title[2]), title[2]
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    assert tuple(parts[1::2]) == SECTIONS == tuple(re.findall(r"^## (.+)$", TEMPLATE.read_text(), re.MULTILINE))
    assert all(body.strip() for body in parts[2::2])
    row = f"| [{number}]({page.name}) | {title[1]}"
    assert row in (page.parent / "README.md").read_text(), f"the list has no row {row!r}"


def test_figures_stand_on_the_benchmark_page() -> None:
    """The README shows five rows, each as on the page that has all, and no label is there twice."""
    tables = {}
    for name in ("README.md", "docs/benchmarks.md"):
        (written,) = TABLE.findall((ROOT / name).read_text())
        rows = re.findall(r"^\| (.+?) \| (.+) \|$", written, re.MULTILINE)
        tables[name] = [(label, figures) for label, figures in rows if label != "row"]
        labels = [label for label, _ in tables[name]]
        assert len(set(labels)) == len(labels)
    assert len(tables["README.md"]) == 5
    assert set(tables["README.md"]) <= set(tables["docs/benchmarks.md"])


def test_every_page_can_be_reached_from_the_readme() -> None:
    """By links of the README and of the pages that it leads to."""
    link = re.compile(r"\]\(([^)#\s]+\.md)")
    seen, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in seen:
            seen.add(page)
            left += [(page.parent / target).resolve() for target in link.findall(page.read_text())]
    assert {path for path in DOCUMENTS if path != TEMPLATE} <= seen, {_named(path) for path in set(DOCUMENTS) - seen}


def test_settings_that_pages_name_exist() -> None:
    """A key is one of ours, or the beginning of some; the options of a query are all on its page."""
    for page in DOCUMENTS:
        for key in re.findall(r"`(spark\.penstock\.[\w.]*\w)[`=]", page.read_text()):
            assert any(f"{known}.".startswith(f"{key}.") for known in KEYS), f"{page.name}: {key}"
    listed = (
        (ROOT / "docs" / "streaming.md").read_text().partition("Options of every query:")[2].partition("They are")[0]
    )
    assert set(re.findall(r"`(\w+)`", listed)) == set(QUERY_OPTIONS)


def _texts() -> Iterator[tuple[str, str]]:
    """What users read: pages, messages of the code (no docstrings), the web page; each with its place."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield _named(page), page.read_text()
    for asset in sorted((ROOT / "src" / "penstock" / "web" / "static").glob("[!u]*.*")):
        yield _named(asset), asset.read_text()
    for module in modules("src/penstock", "examples"):
        docs = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield f"{module.name}:{node.lineno}", node.value


def test_users_read_the_words_that_they_know() -> None:
    """A word of ours that was replaced does not come again."""
    wrong = [
        f"{place}: {found[0]!r}: write {better}"
        for place, text in _texts()
        for pattern, better in OWN_WORDS.items()
        for found in re.finditer(pattern, text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["README", "docs/api", "docs/datasets", "docs/from-pyspark", "docs/tutorial"])
def test_a_page_says_at_once_what_a_stream_is(name: str) -> None:
    """To users of Spark and Flink a stream has no end, and ours may have one."""
    begin = "\n".join((ROOT / f"{name}.md").read_text().splitlines()[:10])
    assert "*stream*" in begin
    assert "DataFrame" in begin
