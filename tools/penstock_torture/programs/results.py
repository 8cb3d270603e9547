# SPDX-License-Identifier: Apache-2.0
"""The file of results: one JSON line for each seed, appended as programs end, so that a run can go on later."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from threading import Lock

from penstock_torture.programs.run import WELL, Ending


class Results:
    """The endings so far; kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = Lock()
        self._kinds: dict[int, tuple[str, str]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self._kinds[entry["seed"]] = entry["outcome"], entry["setting"]

    def pending(self, seeds: range) -> list[int]:
        """The seeds that have no result."""
        return [seed for seed in seeds if seed not in self._kinds]

    def add(self, seed: int, setting: str, ending: Ending) -> None:
        """Keep a result, at once."""
        entry = {
            "seed": seed,
            "setting": setting,
            "outcome": ending.outcome,
            "seconds": ending.seconds,
            "difference": ending.said,
            "notes": ending.notes,
            "program": ending.text.splitlines(),
        }
        with self._lock:
            self._kinds[seed] = ending.outcome, setting
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps(entry, ensure_ascii=True) + "\n")

    def failures(self, seeds: range) -> list[int]:
        """The seeds that did not end well."""
        return [seed for seed in seeds if seed in self._kinds and self._kinds[seed][0] not in WELL]

    def summary(self, seeds: range) -> str:
        """The number of each kind of ending, in all and under each setting."""
        ended = [self._kinds[seed] for seed in seeds if seed in self._kinds]
        counts = Counter(outcome for outcome, _ in ended)
        settings = Counter(setting for _, setting in ended)
        said = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        under = ", ".join(f"{name} {count}" for name, count in settings.most_common())
        return f"{len(ended)} programs: {said or 'none'} (under {under or 'no setting'})"
