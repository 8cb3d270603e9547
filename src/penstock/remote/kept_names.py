# SPDX-License-Identifier: Apache-2.0
"""The manager's results under names: whose they are, who may read them, and when they go. Pure.

Rules:

- A name is a user's. Its result has an identity that who keeps it has drawn; the last one that was kept whole has the
  name, and the one before goes with the same record. A request that comes again changes nothing.
- The rows stay under the application that wrote them, and are no longer that one's to release: they go with the name,
  after `lease` seconds in which no driver or reader has looked for them.
- A description comes packed (`zlib`), and is kept and given so: it may be large. A user has at most `_MOST_NAMES`
  names, and `MOST_BYTES` of descriptions.
- A partition that is kept is not given up with its workers: who reads it while one of them is away hears that it is
  lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.errors import PartitionLostError, QuotaError, SettingError
from penstock.remote import messages as ask
from penstock.remote.manager_state import PACKED, DatasetKey, KeptResult, ManagerState, PartitionKey, Record, user_of
from penstock.remote.partition_states import RemoteEvent, RemoteState

_MOST_LETTERS = 200
_MOST_IN_IDENTITY = 64
_MOST_NAMES = 4_096
_MOST_PARTITIONS = 1 << 15
"""The most partitions of one result: they are kept at once, or not at all."""
MOST_BYTES = 8 << 20
"""Of one user's descriptions, as they are kept: they lie in the manager's memory and its log."""


class KeptNames:
    """The names of all users; `let_go` hears the datasets of which partitions are kept no more."""

    def __init__(
        self,
        state: ManagerState,
        note: Callable[[Record], None],
        let_go: Callable[[str, set[DatasetKey]], None],
        lease: float,
        now: float,
    ) -> None:
        self._state = state
        self._note = note
        self._let_go = let_go
        self._lease = lease
        self._seen = dict.fromkeys(state.kept, now)

    def keep(self, application: str, asked: ask.KeepResult, now: float) -> None:
        """Keep partitions.

        PartitionLostError where one of them is not there, or is under a name already. QuotaError for too much.
        """
        if not 0 < len(asked.name) <= _MOST_LETTERS or not 0 < len(asked.result) <= _MOST_IN_IDENTITY:
            raise SettingError(f"a result's name has 1 to {_MOST_LETTERS} letters, not {len(asked.name)}")
        name = user_of(application), asked.name
        former = self._state.kept.get(name)
        if former is not None and former.result == asked.result:
            self._seen[name] = now
            return
        self._refuse_too_much(name, len(asked.description))
        if (partitions := ask.number_of(asked.partitions)) > _MOST_PARTITIONS:
            raise QuotaError(
                f"the result {asked.name} can't be kept: it has {partitions:,} partitions, and"
                f" {_MOST_PARTITIONS:,} is the limit: use fewer"
            )
        keys: list[PartitionKey] = []
        for partition in ask.unpacked_partitions(asked.partitions):
            key = (application, *partition)
            known = self._state.partitions.get(key)
            if known is None or known.state is not RemoteState.COMPLETE or self.holds(key):
                raise PartitionLostError(
                    f"the result {asked.name} can't be kept: its partition {partition[0]}.{partition[1]} is not there"
                    " any more, or is under another name"
                )
            keys.append(key)
        self._seen[name] = now
        self._note(("kept", *name, asked.result, application, [key[1:] for key in keys], asked.description, PACKED))
        if former is not None:
            self._release(former)

    def find(self, application: str, name: str, now: float) -> ask.FoundResult:
        """The result that the user of this application has under a name; an empty one where there is none."""
        found = self._state.kept.get((user_of(application), name))
        if found is None and self._state.history.is_old:
            raise PartitionLostError(
                f"the result {name} is lost, if it was kept: the manager was started with an old copy of its log."
                " Keep it again, or have the operator put the right log back"
            )
        if found is None:
            return ask.FoundResult()
        self._seen[user_of(application), name] = now
        return ask.FoundResult(found.result, found.description)

    def owner(self, application: str, result: str, now: float) -> str:
        """The application that wrote a result, for one of the same user; nothing where the result is not there."""
        name = self._state.kept_as.get(result)
        if name is None or name[0] != user_of(application):
            return ""
        self._seen[name] = now
        return self._state.kept[name].application

    def holds(self, key: PartitionKey) -> bool:
        """Tell whether a partition is under a name."""
        return key in self._state.kept_partitions

    def holds_any(self, keys: Iterable[PartitionKey]) -> bool:
        """Tell whether one of these is."""
        return any(map(self.holds, keys))

    def pass_time(self, now: float) -> None:
        """Let results go that were not looked for within the lease."""
        for name, seen in list(self._seen.items()):
            if now - seen > self._lease:
                del self._seen[name]
                if (found := self._state.kept.get(name)) is not None:
                    self._note(("unkept", *name))
                    self._release(found)

    def _refuse_too_much(self, name: tuple[str, str], nbytes: int) -> None:
        others = [
            len(kept.description) for each, kept in self._state.kept.items() if each[0] == name[0] and each != name
        ]
        if len(others) >= _MOST_NAMES or sum(others) + nbytes > MOST_BYTES:
            raise QuotaError(
                f"the result {name[1]} can't be kept: user {name[0]} has {len(others):,} names with {sum(others):,}"
                f" bytes of descriptions, this one has {nbytes:,}; the manager of the remote shuffle service keeps"
                f" {_MOST_NAMES:,} and {MOST_BYTES:,} for each: keep fewer results, or such of fewer partitions"
            )

    def _release(self, former: KeptResult) -> None:
        for key in former.keys:
            known = self._state.partitions.get(key)
            if known is not None and known.state is not RemoteState.RELEASED:
                self._note(("ended", *key, RemoteEvent.RELEASE.value, ""))
        self._let_go(former.application, {key[:2] for key in former.keys})
