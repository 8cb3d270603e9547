# SPDX-License-Identifier: Apache-2.0
"""The early end of a run: told to by a signal, or stopped. It tears down, sums up, and exits with a failure.

An error while the session is torn down then (the Java process of Spark may be gone, told by the same signal) is text
below the summary, not an error in its place. A run that comes to its end has such errors in its last test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from types import FrameType
from typing import Any

import psutil
import pytest

_OUTPUT = "errors_behind_the_tests"


def end_as_if_interrupted() -> None:
    """Take SIGTERM as an interruption. Its sender (`timeout`, `make`) may send it twice; only the first counts."""
    own = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a fork of a test has no teardowns to run
            os._exit(128 + number)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # of a shell's background: programs of tests would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Endings:
    """A plugin of every pytest process of a run."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        self._shares_work = config.getoption("dist", "no") != "no"
        self._errors: list[str] = []

    def pytest_keyboard_interrupt(self) -> None:
        """The processes that share the work end too, with their teardowns."""
        for worker in psutil.Process().children() if self._shares_work else ():
            worker.terminate()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Keep what the teardown of the session raises."""
        try:
            yield
        except (Exception, BaseExceptionGroup, KeyboardInterrupt, pytest.fail.Exception) as error:  # noqa: BLE001
            self._errors += _texts(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if self._output is not None:
            self._output[_OUTPUT] = self._errors

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the words of a process that shared the work."""
        self._errors += getattr(node, "workeroutput", {}).get(_OUTPUT, ())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show it."""
        if self._errors:
            terminalreporter.section("errors behind the last test")
            for text in self._errors:
                terminalreporter.line(text)


def _texts(error: BaseException) -> list[str]:
    """One text for each error of a group."""
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _texts(each)]
    return [f"{type(error).__name__}: {error}"]
