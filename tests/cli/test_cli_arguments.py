# SPDX-License-Identifier: Apache-2.0
"""The command line refuses a mistake before anything is started, with one line and exit code 2."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import cli
from source import ROOT


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The command takes SIGTERM for itself; the test run wants it back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` says name and number."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"penstock {penstock.__version__}")
    assert re.search(r"\(commit [0-9a-f]{7,}\)$", said.strip()) or not (ROOT / ".git").exists()


def test_a_reader_that_has_enough_is_no_error() -> None:
    """`penstock completion bash | head -1`: no traceback, and nothing on standard error."""
    command = f"{sys.executable} -m penstock.cli completion bash | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (len(ran.stdout.splitlines()), ran.stderr) == (1, "")


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who types the bare name sees what there is."""
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 0
    assert "checkpoints" in capsys.readouterr().out


@pytest.mark.parametrize(("wrong", "meant"), [("checkpoint", "checkpoints"), ("docter", "doctor")])
def test_a_wrong_word_names_the_one_it_is_like(wrong: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing mistake costs one look."""
    with pytest.raises(SystemExit):
        cli.main([wrong])
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_has_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script knows commands and their words; bash itself reads its own."""
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "savepoints" in script or "checkpoints" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["count"],
        ["bench"],
        ["doctor", "--conf", "key"],
        ["checkpoints", "inspect"],
    ],
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the usage."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err


MANAGER = ["service", "remote", "manager", "--keys", "k", "--dir", "d"]
WORKER = ["service", "remote", "worker", "--keys", "k", "--dir", "d", "--manager", "h:1"]
EXTERNAL = ["service", "external", "--dir", "d"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*EXTERNAL, "--lease", "0"], "0.5 s at least"),
        ([*EXTERNAL, "--kept-lease", "-1"], "write 3650d for ten years"),
        ([*MANAGER, "--silence", "0"], "'0' is no lease"),
        ([*MANAGER, "--lease", "0s"], "'0s' is no lease"),
        ([*MANAGER, "--kept-lease", "-1"], "write 3650d for ten years"),
        *(([*WORKER, "--host", host], "is no address to come to") for host in ("0.0", "0", "::", "::0", "")),
        ([*WORKER, "--advertise", "0.0.0.0:7448"], "--advertise 0.0.0.0:7448 is no address to come to"),
        ([*WORKER, "--advertise", "[::]:7448"], "is no address to come to"),
    ],
)
def test_a_service_refuses_what_can_t_be_meant(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A lease of 0 is no lease without end: it would remove all at once. Nothing is made in the folder."""
    monkeypatch.chdir(tmp_path)
    try:
        code: object = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
