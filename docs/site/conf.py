# SPDX-License-Identifier: Apache-2.0
"""The site: the pages as they stand in the repository, in this order, and a reference out of the docstrings.

The source folder is the repository itself, so that links between pages are the same on the site and beside the code.
The front page is README.md, to which only the list of pages is added here; nothing is written twice. Fonts, scripts
and the search index are files of the site: a reader's browser asks no other host.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

import penstock

sys.path.insert(0, str(Path(__file__).parent))

project = "Penstock"
author = "The Penstock developers"
version = release = penstock.__version__
copyright = author  # noqa: A001 - Sphinx's name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "reference_entries"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "examples"]

html_theme = "furo"
html_title = f"Penstock {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path, html_css_files = ["static"], ["site.css"]
pygments_style, pygments_dark_style = "friendly", "native"

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"
add_module_names = False
python_use_unqualified_type_names = True

PAGES = {
    "To begin": (
        "installation",
        "tutorial",
        "acceleration",
        "from-pyspark",
        "porting",
        "choosing",
        "sessions",
        "examples",
    ),
    "To use": (
        "api",
        "site/reference",
        "datasets",
        "streaming",
        "structured-streaming",
        "event-time",
        "state",
        "connectors",
        "checkpoints",
    ),
    "To run": (
        "tuning",
        "troubleshooting",
        "settings",
        "clusters",
        "two-hosts",
        "upgrades",
        "spark-ess",
        "external",
        "remote",
        "web-page",
        "metrics",
        "benchmarks",
        "testing",
    ),
    "To understand": (
        "architecture",
        "glossary",
        "life-of-a-batch",
        "life-of-a-barrier",
        "life-of-a-failure",
        "control-plane",
        "client",
        "encryption",
        "protocol",
        "data-plane",
        "flow-control",
        "partition-lifecycle",
        "execution-states",
        "file-formats",
    ),
    "To build": ("plug-in", "changes", "../CONTRIBUTING", "decisions/README", "../CHANGELOG"),
}
"""The pages in groups, as the site lists them; a test knows that none is missing."""


def _list_pages(_: Sphinx, name: str, source: list[str]) -> None:
    """Add the lists of pages to the front page, and of decisions to theirs."""
    if name == root_doc:
        source[0] += "".join(_toctree(group, [f"docs/{page}" for page in pages]) for group, pages in PAGES.items())
    elif name == "docs/decisions/README":
        here = Path(__file__).parents[1] / "decisions"
        source[0] += _toctree("", sorted(page.stem for page in here.glob("[0-9]*.md")))


def _toctree(caption: str, pages: list[str]) -> str:
    named = f":caption: {caption}\n" if caption else ""
    listed = "\n".join(page.replace("docs/../", "") for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n{named}\n{listed}\n```\n"


def _name_front_page(app: Sphinx, error: Exception | None) -> None:
    """Web servers, and people who open the folder, look for an index."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.connect("source-read", _list_pages)
    app.connect("build-finished", _name_front_page)
