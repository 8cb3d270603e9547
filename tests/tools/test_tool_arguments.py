# SPDX-License-Identifier: Apache-2.0
"""The command lines of the tools and the demo refuse a mistake before anything starts: one line, exit code 2."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import count_words
from penstock_bench import __main__ as bench
from penstock_torture import __main__ as torture


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The command takes SIGTERM for itself; the test run wants it back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (count_words.main, []),
        (count_words.main, ["--demo", "x"]),
        (count_words.main, ["x", "--partitions", "0"]),
        (count_words.main, ["x", "--top", "-1"]),
        (bench.main, []),
        (bench.main, ["exchange", "--rows", "many"]),
        (bench.main, ["exchange", "--rows", "0"]),
        (bench.main, ["exchange", "--keys", "float"]),
        (torture.main, ["--seed", "x"]),
    ],
)
def test_wrong_arguments_of_tools(
    main: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the usage."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "there is no such"), (b"a\0", "NUL"), (b"a\xff", "not UTF-8 at byte 1")]
)
def test_wrong_paths(tmp_path: Path, content: bytes | None, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the path."""
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_bytes(content)
    assert count_words.main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"penstock: {path}: ")
    assert reason in captured.err
    assert captured.err.count("\n") == 1


def test_folder_without_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to count is an error, not an empty table."""
    assert count_words.main([str(tmp_path)]) == 2
    assert f"{tmp_path}: there is no text file" in capsys.readouterr().err


def test_readme_without_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bench that could not write its table does not begin."""
    readme = tmp_path / "README.md"
    readme.write_text("no marks")
    assert bench.main(["all", "--readme", str(readme)]) == 2
    assert f"{readme}: there are no lines" in capsys.readouterr().err
