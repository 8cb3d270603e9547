# SPDX-License-Identifier: Apache-2.0
"""The page of plug-ins says of each service what that one declares."""

from __future__ import annotations

from importlib.metadata import entry_points

from penstock.shuffle import PartitionKind, load_service
from source import ROOT

SUITES = {
    "local": "test_local_conformance.py",
    "external": "test_external_conformance.py",
    "spark_ess": "test_ess_conformance.py",
    "remote": "test_remote_conformance.py",
    "objects": "test_objects_conformance.py",
}
"""By service: the file in which the conformance suite runs over it."""


def as_table() -> str:
    """The table, as the services declare."""
    lines = ["| kind | " + " | ".join(f"`{name}`" for name in SUITES) + " |", "|---" * (len(SUITES) + 1) + "|"]
    declared = {name: load_service(name).capabilities for name in SUITES}
    for kind in PartitionKind:
        cells = ("yes" if kind in declared[name].kinds else "-" for name in SUITES)
        lines.append(f"| `{kind.label}` | " + " | ".join(cells) + " |")
    for words, flag in (
        ("streaming queries", "streams"),
        ("outlives executors", "outlives_executors"),
        ("results by name", "keeps_by_name"),
    ):
        cells = ("yes" if getattr(declared[name], flag) else "-" for name in SUITES)
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_what_services_declare() -> None:
    """Each kind that a service carries, and what else it can."""
    page = (ROOT / "docs" / "plug-in.md").read_text()
    shown = page.partition("<!-- kinds:start -->\n")[2].partition("<!-- kinds:end -->")[0]
    assert shown == as_table(), f"put this there:\n{as_table()}"


def test_each_service_of_ours_passes_the_suite() -> None:
    """No registered service is missing in the table, and each has its file of the conformance suite."""
    ours = {
        each.name for each in entry_points(group="penstock.shuffle_services") if each.value.startswith("penstock")
    }
    assert ours - {"memory"} == SUITES.keys()
    for name in SUITES.values():
        assert "ShuffleServiceConformance" in (ROOT / "tests" / "processes" / name).read_text()
