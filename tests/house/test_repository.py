# SPDX-License-Identifier: Apache-2.0
"""The rules for files as files: licence lines, no machine's paths, links that lead somewhere, fresh docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layers import LONG
from source import CODE, ROOT, modules, text_files

SPDX = "# SPDX-License-Identifier: Apache-2.0"
ADDRESSES = re.compile(
    r"https?://[^\s)\"'>]*(pypi|pythonhosted|registry|artifactory|nexus|mirror|index-url)|--(extra-)?index-url|"
    r"--trusted-host|PIP_INDEX_URL|UV_INDEX"
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(home|root|work|Users)/[\w.-]+")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"<!-- (?P<path>examples/[\w./-]+) -->\n```python\n(?P<code>.*?)```", re.DOTALL)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SELF = Path(__file__).resolve()


def test_every_file_says_its_licence() -> None:
    """The SPDX line is the first, or the second after a `#!` line."""
    scripts = [path for path in (ROOT / "Makefile", ROOT / ".ci" / "run") if path.exists()]
    paths = [module.path for module in modules("src", "tests", "tools", "examples")] + scripts
    missing = [str(path.relative_to(ROOT)) for path in paths if SPDX not in path.read_text().splitlines()[:2]]
    assert not missing, "\n".join(missing)


def test_files_that_begin_first_in_their_layer_are_there() -> None:
    """One that has another name now would begin last again, and nobody would notice."""
    assert not [name for name in LONG if not (ROOT / name).exists()]


def test_source_files_annotate_late() -> None:
    """Every module that is more than re-exports has the future import."""
    missing = [
        module.name
        for module in modules(*CODE, "tests")
        if module.functions() and "from __future__ import annotations" not in module.text
    ]
    assert not missing, "\n".join(missing)


def test_no_address_of_a_registry() -> None:
    """The machine's configuration says where packages come from."""
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in text_files()
        if path.resolve() != SELF
        for match in ADDRESSES.finditer(path.read_text(errors="replace"))
    ]
    assert not found, "\n".join(found)


def test_no_path_of_one_machine() -> None:
    """Nothing in the repository knows where somebody's checkout or home lies."""
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in text_files()
        if path.resolve() != SELF
        for match in MACHINE_PATHS.finditer(path.read_text(errors="replace"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    """Files exist, and so do the headings that links name."""
    broken = []
    for target in LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (heading and heading not in _anchors(path)):
            broken.append(target)
    assert not broken


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_code_that_claims_to_run_is_an_example() -> None:
    """A Python block under an `<!-- examples/... -->` line is that file without its header, to the letter."""
    found = 0
    for document in DOCUMENTS:
        for match in FENCE.finditer(document.read_text()):
            found += 1
            example = (ROOT / match["path"]).read_text()
            assert match["code"].strip() in example, f"{document.name} and {match['path']} differ"
    assert found, "the README shows no example"


def test_the_settings_page_is_fresh() -> None:
    """`docs/settings.md` is what `tests/support/settings_page.py` makes of the settings' classes."""
    from settings_page import render

    assert (ROOT / "docs" / "settings.md").read_text() == render(), (
        "run: .venv/bin/python tests/support/settings_page.py"
    )


def test_the_metrics_page_is_fresh() -> None:
    """`docs/metrics.md` is what `tests/support/metrics_page.py` makes of the table of metrics."""
    from metrics_page import render

    assert (ROOT / "docs" / "metrics.md").read_text() == render(), (
        "run: .venv/bin/python tests/support/metrics_page.py"
    )
