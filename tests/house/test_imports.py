# SPDX-License-Identifier: Apache-2.0
"""The rooms may import each other in one direction, and pyspark in one room only."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from typing import get_origin, get_type_hints

import pytest

from penstock.shuffle import OwnerContext, ShuffleEnvironmentContext, ShuffleMasterContext
from source import PACKAGE, ROOT, Module, modules

ROOMS: dict[str, set[str]] = {
    "machine": set(),
    "errors": set(),
    "settings": set(),
    "shuffle": set(),
    "lifecycle": set(),
    "buffer": set(),
    "record": {"buffer", "shuffle"},
    "partition": {"buffer", "machine", "shuffle"},
    "connection": {"shuffle"},
    "link": {"connection", "shuffle"},
    "attachment": {"buffer", "connection", "link", "machine", "shuffle"},
    "network": {"buffer", "connection", "shuffle"},
    "checkpoint": {"machine"},
    "environment": {
        "buffer",
        "checkpoint",
        "connection",
        "link",
        "machine",
        "network",
        "observe",
        "partition",
        "shuffle",
    },
    "external": {"connection", "link", "machine", "observe", "partition", "shuffle"},
    "graph": {"shuffle"},
    "job": {"checkpoint", "connection", "graph", "link", "observe", "shuffle"},
    "operators": {"graph", "machine", "record"},
    "task": {"graph", "machine", "operators", "record", "shuffle"},
    "stream": {"checkpoint", "graph", "machine", "operators", "record", "shuffle", "task"},
    "plugin": {"record", "shuffle"},
    "remote": {"connection", "link", "machine", "observe", "shuffle"},
    "services": {
        "buffer",
        "connection",
        "external",
        "link",
        "machine",
        "partition",
        "plugin",
        "record",
        "remote",
        "shuffle",
    },
    "spark": {
        "attachment",
        "checkpoint",
        "graph",
        "job",
        "link",
        "machine",
        "observe",
        "operators",
        "shuffle",
        "stream",
        "task",
        "web",
    },
    "client": {"attachment", "connection", "record", "remote", "shuffle", "task"},
    "api": {"graph", "job", "link", "machine", "observe", "operators", "shuffle", "spark", "stream", "task", "web"},
    "islands": {"api", "graph", "operators", "spark"},
    "observe": {"link", "shuffle"},
    "web": {"graph", "job", "link", "observe", "shuffle"},
    "testing": {"api", "graph", "partition", "shuffle", "task"},
}
"""Each room with the rooms it may import, beside those of everybody."""

EVERYBODYS = ("errors", "settings", "lifecycle")
"""The rooms that each room after them may import, and no row says; none of these imports a later one."""

ON_TOP = {"__init__", "cli", "daemon", "doctor", "inspection", "kept", "operating", "replaying", "showing"}
"""Entry points, which put rooms together and are imported by none."""

PYSPARK_ALSO = ON_TOP
"""Entry points make Spark sessions; `spark/` is the only room that knows Spark."""


def _imported_rooms(module: Module) -> list[tuple[str, int]]:
    found = []
    for name, line in module.imports():
        parts = name.split(".")
        if parts[0] == "penstock" and len(parts) > 1:
            found.append((parts[1], line))
    return found


def test_the_table_has_the_rooms_there_are_and_no_circle() -> None:
    """A new package must be entered, none is there that does not exist, and the table allows one direction only."""
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms - ON_TOP == set(ROOMS)
    tops = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.name in rooms}
    assert tops - set(ROOMS) == ON_TOP


def test_every_permission_is_used() -> None:
    """A permission that a room does not use is taken off its row, so that the table says how it is."""
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module in modules("src/penstock"):
        if module.room in ROOMS:
            used[module.room] |= {room for room, _ in _imported_rooms(module)}
    unused = {room: allowed - used[room] for room, allowed in ROOMS.items()}
    assert set(EVERYBODYS) <= set().union(*used.values())
    assert not any(unused.values()), {room: sorted(rooms) for room, rooms in unused.items() if rooms}


def test_the_architecture_page_shows_the_table() -> None:
    """Each room has a row on the page, with what it may import."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]*) \|$", page, re.MULTILINE))
    shown = {room: set() if text == "nothing of ours" else set(text.split(", ")) for room, text in rows.items()}
    assert shown == ROOMS


def test_the_table_has_no_circle() -> None:
    """Rooms import in one direction."""
    order: list[str] = []
    while len(order) < len(ROOMS):
        free = [room for room, needs in ROOMS.items() if room not in order and needs <= set(order)]
        assert free, f"a circle among {set(ROOMS) - set(order)}"
        order += free


def _everybodys(room: str) -> set[str]:
    known = EVERYBODYS.index(room) if room in EVERYBODYS else len(EVERYBODYS)
    return set(EVERYBODYS[:known])


def test_rooms_import_in_one_direction() -> None:
    """No module imports a room that its own room may not know."""
    wrong = []
    for module in modules("src/penstock"):
        if module.room in ON_TOP:
            continue
        allowed = ROOMS[module.room] | {module.room} | _everybodys(module.room)
        known = set(ROOMS) | ON_TOP
        wrong += [
            f"{module.name}:{line} imports penstock.{room}"
            for room, line in _imported_rooms(module)
            if room in known and room not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_a_service() -> None:
    """A service is found by its name (`shuffle/registry.py`), a shipped one too; entry points do no more."""
    wrong = [
        f"{module.name}:{line} imports {name}"
        for module in modules("src/penstock")
        for name, line in module.imports()
        if name.startswith("penstock.services") and module.room != "services"
    ]
    wrong += [
        f"{module.name}: {node.value}"
        for module in modules("src/penstock")
        if module.room != "services"
        for node in module.nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("penstock.services")
    ]
    assert not wrong, "\n".join(wrong)


def test_what_a_service_is_given_has_types() -> None:
    """Each field of its contexts is a class, a number or a function: no bag of objects to be looked through."""
    for context in (ShuffleEnvironmentContext, ShuffleMasterContext, OwnerContext):
        for name, kind in get_type_hints(context).items():
            assert "object" not in str(kind).replace("<", " ").replace(">", " ").split(), f"{context.__name__}.{name}"
            assert get_origin(kind) not in (dict, Mapping), f"{context.__name__}.{name}"


def test_the_product_knows_no_tool() -> None:
    """The packages that measure, torture and show Penstock lie beside it; torture knows the bench, it the demo."""
    unknown = {
        "src/penstock": {"penstock_bench", "penstock_lab", "penstock_torture", "wordcount"},
        "examples": {"penstock_bench", "penstock_lab", "penstock_torture"},
        "tools/penstock_bench": {"penstock_torture"},
    }
    wrong = [
        f"{module.name}:{line} imports {name}"
        for root, others in unknown.items()
        for module in modules(root)
        for name, line in module.imports()
        if name.split(".")[0] in others
    ]
    assert not wrong, "\n".join(wrong)


def test_the_wheel_has_the_product_alone() -> None:
    """Its build takes one folder, which has no bench and no torture; working copies find the tools, too."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"] == {"wheel": {"packages": ["src/penstock"]}}
    assert build["dev-mode-dirs"] == ["src", "tools", "examples"]
    assert [path.name for path in (ROOT / "src").iterdir() if path.is_dir() and path.name != "__pycache__"] == [
        "penstock"
    ]
    kept = {part for module in modules("src/penstock") for part in module.dotted.split(".")}
    assert not {part for part in kept if re.match(r"bench|tortur|wordcount|failing_files", part)}


def test_only_the_spark_room_imports_pyspark() -> None:
    """Everything else runs, and is tested, without Spark."""
    wrong = [
        f"{module.name}:{line} imports {name}"
        for module in modules("src/penstock")
        for name, line in module.imports()
        if name.split(".")[0] in ("pyspark", "py4j") and module.room not in {"spark", *PYSPARK_ALSO}
    ]
    assert not wrong, "\n".join(wrong)


def test_task_and_environment_do_not_know_each_other() -> None:
    """The synchronous and the asynchronous side meet on a socket, not in an import."""
    for room, other in (("task", "environment"), ("operators", "environment"), ("environment", "task")):
        importers = [m.name for m in modules("src/penstock") if m.room == room and other in dict(_imported_rooms(m))]
        assert not importers


def test_imports_are_absolute() -> None:
    """Relative imports would escape the checks above."""
    wrong = [
        f"{module.name}:{node.lineno}"
        for module in modules("src/penstock")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not wrong


@pytest.mark.parametrize(
    "room", ["attachment", "environment", "link", "operators", "services.local", "task", "testing"]
)
def test_a_worker_starts_without_heavy_libraries(room: str) -> None:
    """Neither Spark nor pandas is loaded by what runs beside the data, and by a task no event loop."""
    if not (PACKAGE / room.replace(".", "/") / "__init__.py").exists():
        pytest.skip(f"there is no penstock.{room}")
    heavy = ["pandas", "pyspark"] + (["asyncio"] if room not in ("environment", "testing") else [])
    program = f"import sys, penstock.{room}; print([name for name in {heavy} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_an_environment_starts_without_what_only_tasks_use() -> None:
    """A first job waits for it: Arrow, NumPy and the list of installed packages were more than half of that."""
    heavy = [
        "pandas",
        "pyspark",
        "pyarrow",
        "numpy",
        "importlib.metadata",
        "penstock.task",
        "penstock.operators",
        "penstock.job",
    ]
    program = f"import sys, penstock.environment.process; print([name for name in {heavy} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_exported_names_exist_and_say_what_they_are() -> None:
    """`__all__` of each package has no doubles, is complete for what it re-exports, and documented."""
    for init in sorted(PACKAGE.rglob("__init__.py")):
        name = ".".join(("penstock", *init.parent.relative_to(PACKAGE).parts))
        package = importlib.import_module(name)
        exported = getattr(package, "__all__", [])
        assert len(set(exported)) == len(exported), f"{name}.__all__ repeats itself"
        imported = {
            alias.asname or alias.name
            for node in ast.parse(init.read_text()).body
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("penstock.")
            for alias in node.names
        }
        assert imported <= set(exported) | {item for item in imported if item.startswith("_")}, name
        for item in exported:
            assert hasattr(package, item), f"{name}.{item} is exported and does not exist"
            value = getattr(package, item)
            is_plain = not (inspect.isclass(value) or inspect.isfunction(value))
            assert is_plain or value.__doc__, f"{name}.{item} has no docstring"


def test_a_driver_starts_without_what_a_first_job_does_not_use() -> None:
    """Neither readers and writers of files, nor streams without an end, nor what tasks alone need."""
    heavy = ["penstock.stream", "penstock.api.readers", "pyarrow.parquet", "penstock.services.local.gate", "pandas"]
    program = (
        "import sys, penstock, penstock.spark.runtime; penstock.fromDataFrame; penstock.KeyedStream\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
