# SPDX-License-Identifier: Apache-2.0
"""The command line refuses a mistake before anything is started, with one line and exit code 2."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

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
