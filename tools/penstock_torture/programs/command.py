# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of some seeds, those of a setting together, and prints a line for each."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock_torture.cluster import spark_home
from penstock_torture.harm import leftovers, own_temporary_folder
from penstock_torture.programs.accelerated import run_accelerated
from penstock_torture.programs.interrupt import interrupted
from penstock_torture.programs.results import Results
from penstock_torture.programs.run import UNCLEAR, WELL, Ending, run_program
from penstock_torture.programs.settings import SETTINGS, Conf, setting_of

Say = Callable[[str], None]

_PROGRAM_SECONDS = 180.0
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Most queries are new and small: the optimizing compiler costs half of the time and earns nothing."""
_SHARED_CONF = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF"}


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """So many seeds from `seed` on; `setting` for all of them in place of the one that each seed says."""

    seed: int
    programs: int
    results: str = ""
    setting: str = ""


def torture_programs(options: ProgramOptions, say: Say) -> list[str]:
    """Run those that have no result yet; what failed, of earlier calls too."""
    if options.setting and options.setting not in SETTINGS:
        raise SettingError(f"there is no setting {options.setting!r}: there are {', '.join(SETTINGS)}")
    seeds = range(options.seed, options.seed + options.programs)
    results = Results(Path(options.results) if options.results else None)
    groups: dict[tuple[str, Conf, bool], list[tuple[int, str]]] = defaultdict(list)
    for seed in results.pending(seeds):
        name = options.setting or setting_of(seed)
        setting = SETTINGS[name]
        groups[setting.master, setting.conf, setting.lasting].append((seed, name))
    left: list[str] = []
    os.environ.setdefault("JDK_JAVA_OPTIONS", _QUICK_JAVA)
    with spark_home(), own_temporary_folder():
        for (master, conf, lasting), pairs in groups.items():
            runner = _Runner(master, conf, results, say)
            left += runner.together(pairs) if lasting else runner.apart(pairs)
    for item in left:
        say(f"left behind: {item}")
    say(f"seeds {seeds.start} to {seeds.stop - 1}: {results.summary(seeds)}")
    return [f"program {seed}" for seed in results.failures(seeds)] + [f"left behind: {item}" for item in left]


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs programs under one kind of session."""

    master: str
    conf: Conf
    results: Results
    say: Say

    def together(self, pairs: list[tuple[int, str]]) -> list[str]:
        """All in one session, those of threads at once; what is left behind."""
        with self._session() as (spark, left):
            at_once: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for seed, name in pairs:
                at_once[SETTINGS[name].threads].append((seed, name))
            for threads, some in at_once.items():
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(lambda pair: self._one(pair[0], pair[1], spark), some))
        return left

    def apart(self, pairs: list[tuple[int, str]]) -> list[str]:
        """Each in a session of its own, or in a driver of its own where it is interrupted."""
        left: list[str] = []
        for seed, name in pairs:
            if SETTINGS[name].interrupt:
                self._keep(seed, name, interrupted(seed))
                continue
            with self._session() as (spark, stayed):
                self._one(seed, name, spark)
            left += stayed
        return left

    @contextmanager
    def _session(self) -> Iterator[tuple[Any, list[str]]]:
        from penstock.spark.session import open_session

        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)  # errors are what we compare
        left: list[str] = []
        conf = {"spark.master": self.master, **_SHARED_CONF, **dict(self.conf)}
        with open_session("penstock-torture", None, conf) as spark:
            application = spark.sparkContext.applicationId
            spark.sparkContext.setLogLevel("OFF")
            yield spark, left
        left += leftovers(application)

    def _one(self, seed: int, name: str, spark: Any) -> None:
        run = run_accelerated if SETTINGS[name].accelerated else run_program
        self._keep(seed, name, within(lambda: run(seed, spark, SETTINGS[name].shape)))

    def _keep(self, seed: int, name: str, ending: Ending) -> None:
        self.results.add(seed, name, ending)
        is_well = ending.outcome in WELL
        again = "" if is_well else f" (again: python -m penstock_torture --programs 1 --seed {seed} --setting {name})"
        self.say(
            f"{'ok  ' if is_well else 'FAIL'} program {seed} {name} {ending.seconds:5.2f} s  "
            f"{ending.outcome}{': ' * bool(ending.said)}{ending.said[:700]}{again}"
        )
        if not is_well:
            self.say(ending.text)


def within(run: Callable[[], Ending]) -> Ending:
    """The ending of a program; one that does not end is left behind."""
    began = time.monotonic()
    endings: list[Ending] = []
    worker = threading.Thread(target=lambda: endings.append(run()), daemon=True)
    worker.start()
    worker.join(_PROGRAM_SECONDS)
    if endings:
        return endings[0]
    return Ending(UNCLEAR, f"did not end within {_PROGRAM_SECONDS:.0f} s", time.monotonic() - began, "")
