# SPDX-License-Identifier: Apache-2.0
"""`docs/changes.md`: how few files a likely change touches, checked by making four of them in a copy of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shuffle.registry import GROUP
from source import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "changes.md").read_text()
MOST = 4
STEP = re.compile(r"^\d+\. (.*?)(?=^\d+\. |^\S|\Z)", re.MULTILINE | re.DOTALL)

Change = Callable[[str, str, str], None]
"""Replace, in a file below `penstock`, one text by another: (file, text, by)."""


def _changes() -> dict[str, list[str]]:
    """The page's changes with their numbered steps."""
    sections = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return {title: STEP.findall(body) for title, body in zip(sections[::2], sections[1::2], strict=True)}


def test_changes_touch_four_files_each() -> None:
    """A step is a file, named or described; a change has at most four."""
    changes = _changes()
    assert len(changes) == 9
    for title, steps in changes.items():
        assert 1 < len(steps) <= MOST, title
        assert sum("`" in step for step in steps) >= len(steps) - 1, f"{title}: which files?"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, to be changed."""
    shutil.copytree(PACKAGE, tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def change(copy: Path) -> Change:
    """Changes the copy; the text must be there once."""

    def apply(file: str, text: str, by: str) -> None:
        path = copy / "penstock" / file
        before = path.read_text()
        assert before.count(text) == 1, f"{file} has {text!r} {before.count(text)} times"
        path.write_text(before.replace(text, by))

    return apply


def _run(copy: Path, program: str) -> str:
    """The output of a program that runs on the copy."""
    paths = f"import sys; sys.path[:0] = [{str(copy)!r}, {str(ROOT / 'tests' / 'support')!r}]\n"
    ran = subprocess.run([sys.executable, "-I", "-c", paths + program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_new_setting_is_one_field(copy: Path, change: Change) -> None:
    """The key, its parser, its way to other processes and the refusal of a misspelled one follow from the field."""
    change(
        "settings/concerns.py",
        "    group_memory: int = 256 << 20\n",
        "    group_memory: int = 256 << 20\n    patience: int = 3\n",
    )
    printed = _run(
        copy,
        "import penstock\n"
        "from penstock.settings import Settings\n"
        "from penstock.errors import SettingError\n"
        "settings = Settings.from_conf({'spark.penstock.task.patience': '7'})\n"
        "print(penstock.__file__.startswith(sys.path[0]), settings.task.patience)\n"
        "print(Settings.from_conf(settings.to_conf()) == settings, Settings().task.patience)\n"
        "try:\n"
        "    Settings.from_conf({'spark.penstock.task.patiense': '7'})\n"
        "except SettingError as error:\n"
        "    print(error)\n",
    )
    assert printed.splitlines()[:2] == ["True 7", "True 3"]
    assert "did you mean spark.penstock.task.patience?" in printed


def test_a_new_event_of_the_jobmaster_is_a_class_a_route_and_a_method(copy: Path, change: Change) -> None:
    """Three files of the core, and the event goes in, is decided on, and shows in the job's trace."""
    change(
        "job/core/events.py",
        "ForParts = (\n",
        "@dataclass(frozen=True, slots=True)\n"
        "class RemarkMade:\n"
        '    """Somebody has something to say about a job."""\n\n'
        "    job: str\n"
        "    text: str\n\n\n"
        "ForParts = (\n    RemarkMade |\n",
    )
    change(
        "job/core/routing.py",
        "        case said.TaskFinished():\n",
        "        case events.RemarkMade():\n"
        "            yield from parts.attempts.remark(event)\n"
        "        case said.TaskFinished():\n",
    )
    change(
        "job/core/attempts/attempts.py",
        "    def open_region(self,",
        "    def remark(self, event: events.RemarkMade) -> Iterator[so.Decision]:\n"
        '        """Somebody has something to say."""\n'
        '        yield so.Record("remark", event.text)\n\n'
        "    def open_region(self,",
    )
    printed = _run(
        copy,
        "import job_graphs\n"
        "from penstock.job.core import events\n"
        "from penstock.job.core.master_core import MasterCore\n"
        "core = MasterCore()\n"
        "core.is_checked = True\n"
        "core.handle(events.JobSubmitted('j1', job_graphs.pipeline(), 4, 60.0), 0.0)\n"
        "core.handle(events.RemarkMade('j1', 'a toy'), 1.0)\n"
        "print([entry for entry in core.trace('j1')][-1])\n",
    )
    assert "remark" in printed
    assert "a toy" in printed


def test_a_new_control_action_is_a_class_and_what_the_task_does_about_it(copy: Path, change: Change) -> None:
    """It travels from the core's instruction to the task's decision with no word of it between them."""
    change(
        "shuffle/actions.py",
        "Action = TriggerCheckpoint | ",
        "@dataclass(frozen=True, slots=True)\n"
        "class EndNow:\n"
        '    """Somebody has seen enough."""\n\n'
        "    why: str\n\n\n"
        "Action = EndNow | TriggerCheckpoint | ",
    )
    change(
        "stream/conversation.py",
        "        if isinstance(action, CheckpointCompleted):\n",
        "        if isinstance(action, EndNow):\n"
        "            return [StopReading()]\n"
        "        if isinstance(action, CheckpointCompleted):\n",
    )
    change("stream/conversation.py", "import Action, ", "import Action, EndNow, ")
    printed = _run(
        copy,
        "from penstock.job.core.instructions import TellEnvironment, job_of\n"
        "from penstock.link import commands\n"
        "from penstock.link.control import pack, unpack\n"
        "from penstock.shuffle import AttemptId\n"
        "from penstock.shuffle.actions import EndNow\n"
        "from penstock.stream.conversation import Conversation\n"
        "told = TellEnvironment('env', commands.TaskAction(AttemptId('j1', 0, 0, 0), EndNow('a toy')))\n"
        "sent = commands.instruction(told.command)\n"
        "heard = commands.read_instruction(unpack(pack(sent)))\n"
        "print(job_of(told), heard.action, Conversation(0).action_came(heard.action, 0.0))\n",
    )
    assert printed.split() == ["j1", "EndNow(why='a", "toy')", "[StopReading()]"]


def test_a_new_service_is_a_room_of_its_own_and_a_name(copy: Path) -> None:
    """The file of the example becomes a shipped service, and a job runs over it in the default mode; nothing else."""
    code = (ROOT / "examples" / "plugin" / "folder_shuffle.py").read_text()
    own = 'name = "folder_shuffle:FolderShuffleService"'
    assert code.count(own) == 1
    room = copy / "penstock" / "services" / "folder"
    room.mkdir()
    (room / "__init__.py").write_text(code.replace(own, 'name = "folder"'))
    wheel = copy / "folder-1.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: folder\nVersion: 1\n")
    (wheel / "entry_points.txt").write_text(f"[{GROUP}]\nfolder = penstock.services.folder:FolderShuffleService\n")
    (copy / "shared").mkdir()
    printed = _run(
        copy,
        "import os\n"
        f"os.environ['FOLDER_SHUFFLE'] = {str(copy / 'shared')!r}\n"
        f"sys.path.append({str(ROOT / 'tools')!r})\n"
        "import pyarrow as pa\n"
        "from penstock.testing.sources import fromBatches\n"
        "from penstock_torture.process_launcher import Nursery\n"
        "from process_cluster import PRELOADED, ProcessCluster\n"
        "rows = pa.table({'k': [n % 3 for n in range(300)], 'v': list(range(300))})\n"
        "with Nursery([*PRELOADED, 'penstock.services.folder']) as nursery:\n"
        "    cluster = ProcessCluster(nursery, conf={'spark.penstock.shuffle.service': 'folder'})\n"
        "    stream = fromBatches(rows, 2).keyBy('k', numPartitions=2).agg(total=('v', 'sum'))\n"
        "    finished = cluster.submit(stream).wait(60)\n"
        "    found = cluster.read(finished, pa.schema([('k', pa.int64()), ('total', pa.int64())]))\n"
        "    print({item.service for item in finished.partitions}, found.sort_by('k')['total'].to_pylist())\n"
        "    cluster.close()\n"
        "print(os.listdir(os.environ['FOLDER_SHUFFLE']))\n",
    )
    assert printed.splitlines() == [f"{{'folder'}} {[sum(range(k, 300, 3)) for k in range(3)]}", "[]"]
