# SPDX-License-Identifier: Apache-2.0
"""The site lists all pages, its reference has all names, pages say when not to use it, its check finds faults."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock.api.bad_lines import BadLineMode
from penstock.api.delta import DeltaMode
from penstock.errors import PenstockError
from penstock.settings import Mode
from penstock.testing.sources import fromBatches
from site_check import main, problems
from source import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WHEN_NOT = ("## When not ", "**When not ")
PUBLIC_MODULES = ("penstock.errors", "penstock.shuffle.service", "penstock.stream.partitioned_source")
PUBLIC_MODULES += ("penstock.stream.sinks", "penstock.stream.sources")
"""Those that users import from, beside `penstock` itself."""
WITHOUT_EXAMPLE = {f"BatchProcessor.{name}" for name in ("handleBroadcast", "handleExpiredTimers", "close")}
WITHOUT_EXAMPLE |= {"BatchProcessor.handleInitialState", "JobResult.trace_of"}
"""Methods that the library calls, and one that reads a trace."""
WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    "spark": lambda _: penstock.readText("a.txt", "b.txt"),
    "df": lambda _: penstock.fromDataFrame(1),
    "path": lambda _: penstock.readParquet(None, "nowhere"),
    "condition_": lambda rows: rows.filter(pc.field("w") > 1),
    "expression": lambda rows: rows.withColumn("w", pc.field("w")),
    "numPartitions": lambda rows: rows.rebalance(0),
    "mode": lambda rows: rows.rebalance(mode="quick"),
    "service": lambda rows: rows.rebalance(service="nobodys"),
    "schema": lambda rows: rows.mapInArrow(iter, 1),
    "func": lambda rows: rows.mapInArrow("f", "k string"),
    "cols": lambda rows: rows.keyBy("w"),
    "subset": lambda rows: rows.dropDuplicates(["w"]),
    "eventTime": lambda rows: rows.withWatermark("v", "1 minute"),
    "timeMode": lambda rows: rows.keyBy("k").transformWithStateInArrow(
        penstock.BatchProcessor(), "k string", timeMode="Lunch"
    ),
    "outputStructType": lambda rows: rows.keyBy("k").transformWithStateInArrow(penstock.BatchProcessor(), 1),
}
"""A call with a wrong value of an argument, each without Spark."""


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
    """Each name that `import penstock` gives is an entry of its own, and no other is."""
    text = (DOCS / "site" / "reference.rst").read_text()
    assert set(re.findall(r"^\.\. auto(?:class|function):: penstock\.(\w+)$", text, re.MULTILINE)) == set(
        penstock.__all__
    )


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    """The module that completes the entries of the reference."""
    path = DOCS / "site" / "reference_entries.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


def test_each_entry_of_the_reference_is_whole(reference: ModuleType) -> None:
    """Each argument has a meaning and a type, each verb an example; no text is of something that is not there."""
    entries = dict(reference.entries())
    assert len(entries) > 150
    wrong = [
        f"{entry}: {argument.name} has no {what}"
        for entry, thing in entries.items()
        for argument in reference.arguments(thing)
        for what, is_there in (
            ("meaning", reference.meaning(entry, argument.name)),
            ("type", reference.written(argument.annotation)),
        )
        if not is_there
    ]
    verbs = {entry for entry, thing in entries.items() if inspect.isfunction(inspect.unwrap(thing))}
    wrong += [f"{entry} has no example" for entry in verbs - set(reference.examples()) - WITHOUT_EXAMPLE]
    told = reference.told()
    wrong += [f"{entry} is no entry" for entry in {*reference.examples(), *told["of"]} - set(entries)]
    names = {argument.name for thing in entries.values() for argument in reference.arguments(thing)}
    wrong += [f"no entry takes {name}" for name in {*told["arguments"], *told["errors"]} - names]
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize("argument", list(WRONG_CALLS))
def test_a_wrong_argument_raises_what_the_reference_says(argument: str, reference: ModuleType) -> None:
    """Of the errors that are written down for an argument, one is raised."""
    rows = fromBatches(pa.table({"k": ["a"], "v": [1]}), 1)
    with pytest.raises((PenstockError, TypeError)) as raised:
        WRONG_CALLS[argument](rows)
    names, _, _ = reference.told()["errors"][argument].partition(": ")
    assert type(raised.value).__name__ in names.split(", "), raised.value


def test_the_reference_names_no_module_that_users_do_not_import(reference: ModuleType) -> None:
    """Neither in docstrings nor in the page: a name is one of `penstock`, or of a public module."""
    texts = {entry: inspect.getdoc(thing) or "" for entry, thing in reference.entries()}
    texts["reference.rst"] = (DOCS / "site" / "reference.rst").read_text()
    public = {*PUBLIC_MODULES, *(f"penstock.{name}" for name in penstock.__all__)}
    wrong = [
        f"{entry}: {name}"
        for entry, text in texts.items()
        for name in re.findall(r"(?<!spark\.)\bpenstock\.[\w.]*\w", text)
        if not any(f"{name}.".startswith(f"{known}.") for known in public)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_reference_says_the_modes_that_there_are() -> None:
    """The values of the types that are words stand on the page, in the order of the code."""
    text = (DOCS / "site" / "reference.rst").read_text()
    for name, kind in {"Mode": Mode, "BadLineMode": BadLineMode, "DeltaMode": DeltaMode}.items():
        values = " | ".join(f'"{value}"' for value in get_args(kind))
        assert f".. py:type:: {name}\n   :canonical: {values}\n" in text


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
