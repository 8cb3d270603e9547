# SPDX-License-Identifier: Apache-2.0
"""The command line refuses a mistake before anything is started, with one line and exit code 2."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from penstock import cli


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
    assert capsys.readouterr().out.startswith("penstock 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
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
