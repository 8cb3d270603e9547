# SPDX-License-Identifier: Apache-2.0
"""Storm's scheme in environments: sources pause at a word, and flags travel by the JobMaster or by ZooKeeper."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Container
from pathlib import Path

import pytest

from network_parts import wait_until
from penstock.environment.throttling import Throttling
from penstock.errors import SettingError, how_to_install
from penstock.testing import DEADLINE
from penstock_lab.zookeeper import ZooKeeperFlags, parse_address
from small_hosts import on_loop
from zookeeper_server import need_zookeeper, zookeeper


class Recorded:
    """The words to one environment, in order."""

    def __init__(self) -> None:
        self.words: list[tuple[str, bool]] = []

    def __call__(self, job: str, *, is_raised: bool) -> None:
        """A word of the coordinator."""
        self.words.append((job, is_raised))


class PausedTask:
    """A task that notes for which jobs its sources pause."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def pause_sources(self, jobs: Container[str]) -> None:
        """Of two jobs that there are."""
        self.paused = {job for job in ("j1", "j2") if job in jobs}


class Flags:
    """A coordinator that notes what it is told."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def put(self, job: str, flag: str, *, is_raised: bool) -> None:
        """Nobody raises a flag here."""

    def forget(self, job: str) -> None:
        """A job is over."""
        self.forgotten.append(job)

    async def close(self) -> None:
        """Nothing is held."""


def test_sources_pause_for_jobs_with_a_flag_and_go_on_after_their_end() -> None:
    """Those that are attached, and one that opens a port later."""
    task, late, flags = PausedTask(), PausedTask(), Flags()
    throttling = Throttling([task])
    throttling.coordinator = flags
    throttling.told("j1", is_raised=True)
    throttling.told("j2", is_raised=True)
    throttling.told("j2", is_raised=False)
    throttling.settle(late)
    assert task.paused == late.paused == {"j1"}
    throttling.forget("j1")
    assert (task.paused, flags.forgotten) == (set(), ["j1"])


@pytest.mark.parametrize("address", ["", "/path"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """With the form that it has to have."""
    with pytest.raises(SettingError, match="must look like host:2181"):
        parse_address(address)


def test_an_address_has_hosts_and_a_path() -> None:
    """The path is ours where it is left out."""
    assert parse_address("a:1,b:2/x/y/") == ("a:1,b:2", "/x/y")
    assert parse_address("a:1") == ("a:1", "/penstock")


def test_without_the_client_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that installs it."""
    monkeypatch.setitem(sys.modules, "kazoo.client", None)

    async def main() -> None:
        with pytest.raises(SettingError, match=f"kazoo is not installed.*{re.escape(how_to_install('lab'))}"):
            ZooKeeperFlags("127.0.0.1:1", "app", "env", Recorded())

    on_loop(main)


def _with_zookeeper(folder: Path, test: Callable[[str], Awaitable[None]]) -> None:
    with zookeeper(folder) as address:
        on_loop(lambda: test(f"{address}/lab"))


def test_flags_in_zookeeper_are_seen_by_all_environments(tmp_path: Path) -> None:
    """The first one that goes up and the last one that goes down are told, once, to the raiser too."""

    async def main(url: str) -> None:
        told = Recorded(), Recorded()
        sinks, sources = (ZooKeeperFlags(url, "app", f"env{place}", each) for place, each in enumerate(told))
        sinks.put("j1", "g1", is_raised=True)
        await wait_until(lambda: all(each.words == [("j1", True)] for each in told))
        sinks.put("j1", "g2", is_raised=True)
        sinks.put("j1", "g1", is_raised=False)
        sources.put("j2", "g1", is_raised=True)
        await wait_until(lambda: all(("j2", True) in each.words for each in told))
        sinks.put("j1", "g2", is_raised=False)
        sinks.put("j1", "g2", is_raised=False)
        await wait_until(lambda: all(("j1", False) in each.words for each in told))
        assert all(each.words.count(("j1", True)) == 1 for each in told)
        sinks.forget("j1")
        sinks.put("j1", "g3", is_raised=True)
        await wait_until(lambda: all(each.words.count(("j1", True)) == 2 for each in told))
        await sinks.close()
        await sinks.close()
        await wait_until(lambda: told[1].words[-1] == ("j1", False))
        await sources.close()

    _with_zookeeper(tmp_path, main)


def test_flags_that_are_up_when_zookeeper_comes_are_put_there(tmp_path: Path) -> None:
    """The environment began before its coordinator did."""

    async def main() -> None:
        told = Recorded()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        flags = ZooKeeperFlags(f"127.0.0.1:{port}", "app", "env", told)
        flags.put("j1", "g1", is_raised=True)
        flags.put("j1", "g2", is_raised=True)
        flags.put("j1", "g2", is_raised=False)
        with zookeeper(tmp_path, port):
            await wait_until(lambda: told.words == [("j1", True)])
            flags.put("j1", "g1", is_raised=False)
            await wait_until(lambda: told.words == [("j1", True), ("j1", False)])
            await flags.close()

    need_zookeeper()
    on_loop(main)


def test_a_zookeeper_that_is_not_there_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said in the log, and tried again; an end in between is one."""
    pytest.importorskip("kazoo", reason="kazoo (the extra lab) is missing")
    monkeypatch.setattr("penstock_lab.zookeeper.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("penstock_lab.zookeeper.AGAIN_SECONDS", 0.01)

    async def main() -> None:
        flags = ZooKeeperFlags("127.0.0.1:1", "app", "env", Recorded())
        flags.put("j1", "g1", is_raised=True)
        await wait_until(lambda: caplog.text.count("failed") >= 2)
        await flags.close()

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(main(), DEADLINE))
    assert "ZooKeeper at 127.0.0.1:1" in caplog.text
