# SPDX-License-Identifier: Apache-2.0
"""The site lists all pages, its reference has all names, pages say when not to use it, its check finds faults."""

from __future__ import annotations

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import penstock
from site_check import main, problems
from source import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WHEN_NOT = ("## When not ", "**When not ")


def _listed() -> set[str]:
    """The pages that `docs/site/conf.py` lists."""
    tree = ast.parse((DOCS / "site" / "conf.py").read_text())
    (found,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PAGES"
    ]
    return {page for pages in ast.literal_eval(found).values() for page in pages}


def test_the_site_lists_all_pages() -> None:
    """Each page is in one group, beside those of the repository's root and the list of decisions."""
    assert _listed() >= {page.stem for page in PAGES} | {"site/reference", "decisions/README"}


def test_the_reference_has_all_public_names() -> None:
    """Each name that `import penstock` gives is an entry of its own."""
    entries = {line.split("penstock.")[-1] for line in (DOCS / "site" / "reference.rst").read_text().splitlines()}
    assert set(penstock.__all__) <= entries


def test_what_the_reference_names_is_there() -> None:
    """A class that has moved to another module would fail the build of the site, which takes longer."""
    text = (DOCS / "site" / "reference.rst").read_text()
    names = re.findall(r"^\.\. auto(?:class|function|module):: (\S+)$", text, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if pkgutil.resolve_name(name) is None] == []


def test_the_site_is_built_without_a_network() -> None:
    """`make docs` installs nothing: what it needs comes with `make setup`; CI builds it where there is no network."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.partition("\ndocs: $(STAMP)")[2].partition("\n\n")[0]
    assert recipe.count("\n\t") == 4
    assert "pip" not in recipe
    assert ",docs," in makefile.partition("$(STAMP): pyproject.toml")[2].partition("touch")[0]
    assert "unshare -rn make docs" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_a_page_says_when_not_to_use_it(page: Path) -> None:
    """Nothing on it is good for everything: it has a section, or a paragraph that begins so."""
    lines = page.read_text().splitlines()
    assert any(line.startswith(WHEN_NOT) for line in lines), "a section '## When not to use it' is missing"


def test_faults_of_a_site_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures, scripts and styles of other hosts, links to no page or place; a link to another host is none."""
    fine = '<link rel="canonical" href="https://example.org/a"><a href="https://example.org">out</a><a href="#here">'
    (tmp_path / "a.html").write_text(f'{fine}<p id="here"><img src="b.png"><a href="sub/c.html#there">')
    (tmp_path / "b.png").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.html").write_text('<a name="there"></a><a href="../a.html">')
    assert list(problems(tmp_path)) == []
    assert main(str(tmp_path)) == 0
    asking = [
        '<script src="https://cdn.example.org/a.js"></script>',
        '<link rel="stylesheet" href="//cdn.example.org/a.css">',
        '<img srcset="https://cdn.example.org/a.png 2x">',
        '<p style="background: url(https://cdn.example.org/b.png)">',
        "<style>@import 'https://cdn.example.org/c.css';</style>",
        "<svg><image href='https://cdn.example.org/d.png'/></svg>",
    ]
    (tmp_path / "d.html").write_text("".join(asking))
    (tmp_path / "e.css").write_text("@font-face { src: url('https://cdn.example.org/f.woff2') }")
    (tmp_path / "g.html").write_text('<a href="nowhere.html"><a href="a.html#nowhere"><img src="no.png">')
    found = list(problems(tmp_path))
    assert len([each for each in found if "asks another host" in each]) == len(asking) + 1
    assert len([each for each in found if "leads nowhere" in each]) == 3
    assert main(str(tmp_path)) == 1
    assert capsys.readouterr().out.count("\n") == len(found)
