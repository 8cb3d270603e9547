# SPDX-License-Identifier: Apache-2.0
"""Logs are kept for their user alone, within bounds, and go when they are old; a disk that fails costs lines."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import SettingError
from penstock.link import kept_logs
from penstock.link.kept_logs import (
    KeptFile,
    application_folder,
    applications,
    link_log,
    logs_folder,
    make_room,
    sweep_logs,
)
from penstock.shuffle import AttemptId
from penstock.spark.kept_output import keeping_output
from underway import listed

DAY = 86_400


def test_a_file_keeps_the_last_part(tmp_path: Path) -> None:
    """The file is whole while there is room; then the older half goes, and lines are never mixed up."""
    file = KeptFile(tmp_path / "a.out", 1000, "# heading")
    assert not (tmp_path / "a.out").exists()
    for number in range(200):
        file.write(f"line {number:04}\n")
    file.close()
    file.close()
    file.write("too late\n")
    kept = (tmp_path / "a.out.1").read_text() + (tmp_path / "a.out").read_text()
    lines = [line for line in kept.splitlines() if line != "# heading"]
    assert lines == [f"line {number:04}" for number in range(200 - len(lines), 200)]
    assert 400 < len(kept) <= 1000 + len("# heading\n")
    assert stat.S_IMODE((tmp_path / "a.out").stat().st_mode) == 0o600


def test_one_huge_text_is_cut(tmp_path: Path) -> None:
    """Its end stays; what is no text is escaped."""
    file = KeptFile(tmp_path / "a.out", 1000)
    file.write("x" * 10_000 + "\udc80 end")
    file.close()
    text = (tmp_path / "a.out").read_text()
    assert text.endswith("\\udc80 end")
    assert len(text) <= 500


def test_a_descriptor_follows_its_file(tmp_path: Path) -> None:
    """A process that writes to it directly is kept too, also after the file was set aside."""
    path = tmp_path / "environment.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    file = KeptFile(path, 100, descriptor=descriptor)
    for _ in range(10):
        file.write("a line of the log\n")
    os.write(descriptor, b"a crash\n")
    assert path.read_text().endswith("a crash\n")
    assert path.with_name("environment.log.1").exists()
    file.close()
    os.close(descriptor)


def test_a_disk_that_fails_costs_lines_alone(tmp_path: Path) -> None:
    """No write raises, and none is tried again."""
    file = KeptFile(tmp_path / "no folder" / "a.out")
    file.write("x")
    (tmp_path / "no folder").mkdir()
    file.write("y")
    file.close()
    assert listed(tmp_path / "no folder") == []


def test_folders_are_the_users_alone(tmp_path: Path) -> None:
    """Names lead nowhere else, and a folder that others may read is refused."""
    folder = application_folder("../../app 1", str(tmp_path))
    assert folder.parent == logs_folder(str(tmp_path))
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    folder.parent.chmod(0o755)
    with pytest.raises(SettingError, match="must be a folder of this user alone"):
        application_folder("other", str(tmp_path))


def test_an_environments_log_stays_when_its_folder_goes(tmp_path: Path) -> None:
    """The rendezvous folder has a link; where none can be made the log is a file there, as before."""
    (tmp_path / "abc").mkdir()
    log = tmp_path / "abc" / "log"
    link_log(log, "app", str(tmp_path))
    log.write_text("hello")
    log.unlink()
    assert (application_folder("app", str(tmp_path)) / "environment-abc.log").read_text() == "hello"
    logs_folder(str(tmp_path)).chmod(0o755)
    link_log(log, "app", str(tmp_path))
    assert not log.exists()


def test_old_applications_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a week, and beyond the fiftieth, but for those that have just written."""
    for number in range(60):
        path = application_folder(f"app{number}", str(tmp_path)) / "a.out"
        path.touch()
        os.utime(path, (1000 + number, 1000 + number))
    assert [folder.name for folder, _ in applications(str(tmp_path))][:2] == ["app59", "app58"]
    assert sweep_logs(str(tmp_path), 1100.0) == []
    gone = sweep_logs(str(tmp_path), 1000.0 + DAY)
    assert sorted(folder.name for folder in gone) == sorted(f"app{number}" for number in range(10))
    assert len(sweep_logs(str(tmp_path), 1000.0 + 8 * DAY)) == 50
    assert applications(str(tmp_path)) == []


def test_an_application_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its oldest files go."""
    monkeypatch.setattr(kept_logs, "APPLICATION_BYTES", 1000)
    for number in range(10):
        path = tmp_path / f"{number}.out"
        path.write_text("x" * 300)
        os.utime(path, (number, number))
    make_room(tmp_path)
    assert sorted(path.name for path in listed(tmp_path)) == ["7.out", "8.out", "9.out"]


def test_output_is_kept_beside_where_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both streams go where they went, too; nothing printed makes no file; then the streams are the old ones."""
    before = sys.stdout, sys.stderr
    with keeping_output("app", str(tmp_path), AttemptId("j1", 2, 3, 0), "job: count (stage 2, subtask 3)"):
        print("to out")
        print("to err", file=sys.stderr)
        sys.stdout.writelines(["a\n", "b\n"])
        assert sys.stdout.encoding == before[0].encoding
    with keeping_output("app", str(tmp_path), AttemptId("j1", 2, 4, 0), "silent"):
        pass
    assert (sys.stdout, sys.stderr) == before
    said = capsys.readouterr()
    assert (said.out, said.err) == ("to out\na\nb\n", "to err\n")
    (path,) = listed(application_folder("app", str(tmp_path)))
    assert path.name == "j1-stage2-subtask3-attempt0.out"
    first, rest = path.read_text().split("\n", 1)
    assert first.startswith("# job: count (stage 2, subtask 3), attempt 0, ")
    assert rest == "to out\nto err\na\nb\n"


def test_the_command_shows_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the newest application, of a job by its id or name, a number of lines; else it says what there is."""
    place = ["--directory", str(tmp_path)]
    (tmp_path / "abc").mkdir()
    assert main(["logs", *place]) == 2
    assert "has no logs" in capsys.readouterr().err
    for job, name in (("j1", "words"), ("j2", "sums")):
        with keeping_output("app-1", str(tmp_path), AttemptId(job, 0, 0, 0), f"{name}: read (stage 0, subtask 0)"):
            for number in range(30):
                print(f"{name} {number}")
    capsys.readouterr()
    assert main(["logs", "--lines", "2", *place]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "==> j1-stage0-subtask0-attempt0.out <==\nwords 28\nwords 29\n"
        "==> j2-stage0-subtask0-attempt0.out <==\nsums 28\nsums 29\n"
    )
    assert str(tmp_path) in shown.err
    for job in ("j2", "sums"):
        assert main(["logs", "app", "--job", job, "--lines", "1", *place]) == 0
        assert capsys.readouterr().out.endswith("sums 29\n")
    assert main(["logs", "--job", "j9", *place]) == 2
    assert main(["logs", "other", *place]) == 2
    capsys.readouterr()
    assert main(["logs", "--list", *place]) == 0
    assert capsys.readouterr().out.endswith("  app-1\n")
    link_log(tmp_path / "abc" / "log", "app-1", str(tmp_path), "my words")
    assert main(["logs", "--list", *place]) == 0
    assert capsys.readouterr().out.endswith("  app-1  my words\n")
    assert main(["logs", "my words", "--job", "j1", *place]) == 0
