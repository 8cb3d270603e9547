# SPDX-License-Identifier: Apache-2.0
"""Results under names, which services keep for their users: a client has those of its user's Spark jobs."""

from __future__ import annotations

from penstock.client.membership import Membership
from penstock.client.parts import Kept, Part, one_schema
from penstock.errors import SettingError

MOST_LETTERS = 200


class Names:
    """The names of one client."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def check(self, name: str) -> None:
        """Raise SettingError for what is no name."""
        if not name or len(name) > MOST_LETTERS:
            raise SettingError(f"a result's name has 1 to {MOST_LETTERS} letters, not {len(name)}")

    def keep(self, name: str, parts: tuple[Part, ...]) -> Kept:
        """Keep complete parts under a name. PartitionError where one of them is gone."""
        self.check(name)
        encoded = one_schema(parts)
        if wide := [part for part in parts if part.subpartitions > 1]:
            raise SettingError(
                f"a result's partitions have one subpartition each, and {len(wide)} of these parts have more: write"
                " each subpartition as a part"
            )
        membership = self._membership
        kept = membership.master().keep_result(name, encoded, [part.descriptor for part in parts])
        return Kept.of(name, encoded, membership.call(kept))

    def find(self, name: str) -> Kept | None:
        """The result under a name, or None."""
        self.check(name)
        found = self._membership.call(self._membership.master().find_result(name))
        return None if found is None else Kept.of(name, found[0], list(found[1]))
