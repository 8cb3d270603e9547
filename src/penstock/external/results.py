# SPDX-License-Identifier: Apache-2.0
"""Results that a host service keeps by name: prepared, then switched to, then without the former one.

Rules: the services of several hosts replace a result together, and none knows of the others. So the former one is
whole until the driver that replaces it says that all have switched, and the new one is whole from its preparation on:
a name never means rows that are not there, whichever process is killed. The remains of a replacement that its driver
did not end go with the next one of its name, or with their lease.

| role | `prepare` | `switch` | another one's `switch` | `switch_back` | `forget_former` | `undo` |
|---|---|---|---|---|---|---|
| prepared | more of it | current | prepared | prepared | gone, if it is older | gone |
| current | refused | current | former | prepared, and the newest former one current | current | current |
| former | refused | current | former | former | gone | former |
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Final

from penstock.errors import PartitionError, PartitionLostError, ProtocolError, QuotaError, StorageError
from penstock.external.accounts import Account, AccountRole, KeptPartition, KeptQuotas
from penstock.external.keys import KEY_BYTES, ApplicationKey, name_of_key
from penstock.external.manifests import (
    CURRENT,
    DESCRIPTION,
    FolderWord,
    remove_whole,
    write_description,
    write_whole,
    write_word,
)
from penstock.external.requests import (
    PIECE_BYTES,
    FindByName,
    ForgetFormer,
    FoundByName,
    KeptState,
    PrepareKept,
    SwitchBack,
    SwitchKept,
    UndoKept,
)
from penstock.external.upkeep import Upkeep
from penstock.shuffle import PartitionId

MOST_DESCRIBED: Final = 16 << 20
"""Bytes of a description: that of a result of 100,000 partitions."""
_NAME: Final = 1000
DOUBT_SECONDS: Final = 60.0
"""A driver that replaces a result has told all hosts within this time, or is gone."""


_AboutResult = SwitchKept | ForgetFormer | SwitchBack | UndoKept


class ResultKeeper:
    """The results of all users of one service."""

    def __init__(self, upkeep: Upkeep, quotas: KeptQuotas, names: int) -> None:
        self._upkeep = upkeep
        self._quotas = quotas
        self._names = names
        self._changing = asyncio.Lock()
        """Of rows of results and what is known of them: a change sees what the last one has left."""
        self._given_up: deque[str] = deque(maxlen=1000)
        """Results that went while they were prepared, for another one of their name."""

    async def prepare(self, account: Account, request: PrepareKept) -> None:
        """Take partitions out of an application; errors as of the request."""
        self._refuse_hidden()
        if not 0 < len(request.name) <= _NAME or len(request.key) != KEY_BYTES:
            raise ProtocolError("a result has a name of up to 1,000 letters, and a key")
        there = _there(account, request.name, request.partitions)
        end = request.offset + len(request.description)
        size = sum(kept.bytes for kept in there) + len(request.description)
        self._upkeep.accounts.refuse_too_much(account, request.name, size, self._quotas)
        result = await self._prepared(account, request)
        folders = [Path(kept.folder).name for kept in (*result.numbers.values(), *there)]
        key = result.key
        word = FolderWord(key.title, key.key, result.user, kept=result.kept, made=result.made, folders=tuple(folders))
        await self._upkeep.at_disk(result.folder, lambda: self._write(result.folder, request, word))
        if self._upkeep.accounts.find(key.name) is not result:
            raise PartitionLostError(f"the result {request.name} was given up while it was prepared")
        more = max(0, end - result.described)
        result.described += more
        result.used += more
        await self._upkeep.see_through(self._taken(account, result, request))

    async def _taken(self, account: Account, result: Account, request: PrepareKept) -> None:
        """Move partitions to the result before their rows are written: so none is released with the application's."""
        async with self._changing:
            there = _there(account, request.name, request.partitions)
            _move(there, account, result)
            try:
                await self._write_owner(there, result, account)
            except StorageError:
                _move((kept for kept in there if result.numbers.get(kept.number) is kept), result, account)
                raise

    async def switch(self, account: Account, request: SwitchKept) -> None:
        """Give a result its name; PartitionLostError where it is not there."""
        result = self._found(account, request)
        if result is None:
            raise PartitionLostError(f"the result {request.name} is not prepared any more: keep it again")
        self._refuse_at_once(account, result)
        await self._upkeep.at_disk(result.folder, lambda: write_whole(result.folder, CURRENT, b""))
        await self._upkeep.see_through(self._switched(account, result))

    async def _switched(self, account: Account, result: Account) -> None:
        async with self._changing:
            self._refuse_at_once(account, result)
            former = self._upkeep.accounts.kept(result.kept, result.user)
            if former is not result and self._upkeep.accounts.find(result.key.name) is result:
                taken = [(former, AccountRole.FORMER)] if former is not None else []
                await self._give_roles(*taken, (result, AccountRole.CURRENT))
                result.taken_over, result.taken_by = time.monotonic(), account.key.name

    def _refuse_at_once(self, account: Account, result: Account) -> None:
        """PartitionError while another driver replaces the same name: else each host may have another one's result.

        One of the same application may be of a try that failed, so it refuses none.
        """
        former = self._upkeep.accounts.kept(result.kept, result.user)
        if former is None or former is result or former.taken_by == account.key.name:
            return
        if time.monotonic() - former.taken_over < DOUBT_SECONDS:
            raise PartitionError(
                f"another program keeps a result under the name {result.kept} at this moment, or was killed while it"
                f" did: keep yours again in {DOUBT_SECONDS:.0f} seconds"
            )

    async def switch_back(self, account: Account, request: SwitchBack) -> None:
        """Have a name mean what it meant before; idempotent."""
        await self._upkeep.see_through(self._switched_back(account, request))
        result = self._found(account, request)
        if result is not None and result.role is AccountRole.PREPARED:
            folder = result.folder
            await self._upkeep.at_disk(folder, lambda: remove_whole(folder, CURRENT))

    async def _switched_back(self, account: Account, request: SwitchBack) -> None:
        async with self._changing:
            result = self._found(account, request)
            if result is not None and result.role is AccountRole.CURRENT:
                others = self._upkeep.accounts.others(result)
                formers = [(each, AccountRole.CURRENT) for each in others if each.role is AccountRole.FORMER]
                await self._give_roles((result, AccountRole.PREPARED), *formers[:1])

    async def forget_former(self, account: Account, request: ForgetFormer) -> None:
        """All hosts have switched; nothing happens where another one has the name meanwhile."""
        result = self._found(account, request)
        if result is not None and result.role is AccountRole.CURRENT:
            result.taken_over = -inf
            for other in self._upkeep.accounts.others(result):
                if other.role is AccountRole.FORMER or other.made < result.made:
                    self._given_up.append(other.key.name)
                    await self._upkeep.end(other)
            await self._upkeep.index.written()

    async def undo(self, account: Account, request: UndoKept) -> None:
        """Give an application its partitions back; idempotent."""
        await self._upkeep.see_through(self._undone(account, request))

    async def _undone(self, account: Account, request: UndoKept) -> None:
        async with self._changing:
            result = self._found(account, request)
            if result is None or result.role is not AccountRole.PREPARED:
                return
            back = [kept for kept in result.numbers.values() if kept.partition not in account.partitions]
            await self._write_owner(back, account, result)
            _move((kept for kept in back if result.numbers.get(kept.number) is kept), result, account)
        await self._upkeep.end(result)
        await self._upkeep.index.written()

    async def find(self, account: Account, request: FindByName) -> FoundByName:
        """The result that the user of this application has under a name."""
        found = self._upkeep.accounts.kept(request.name, account.user)
        if found is None:
            self._refuse_hidden()
            return FoundByName()
        found.seen = time.monotonic()
        piece = await self._upkeep.at_disk(found.folder, lambda: _read(found.folder, request.offset))
        return FoundByName(found.key.key, piece)

    async def _prepared(self, account: Account, request: PrepareKept) -> Account:
        """The result that is being prepared, with room for more of its description."""
        known = self._upkeep.accounts.find(name_of_key(request.key))
        if known is None:
            if name_of_key(request.key) in self._given_up:  # the rows that it had are gone
                raise PartitionLostError(f"the result {request.name} was given up while it was prepared")
            folder = await self._upkeep.new_folder()
            known = await self._upkeep.see_through(self._new(account, request, folder))
        if known.role is not AccountRole.PREPARED or (known.user, known.kept) != (account.user, request.name):
            raise ProtocolError(f"the key of the result {request.name} is another one's")
        if not 0 <= request.offset <= MOST_DESCRIBED - len(request.description):
            raise QuotaError(
                f"the result {request.name} has a description of more than {MOST_DESCRIBED:,} bytes, the most that a"
                " host service keeps: keep fewer partitions, or fewer columns"
            )
        return known

    async def _new(self, account: Account, request: PrepareKept, folder: str) -> Account:
        """A result that has nothing yet, or the one that came meanwhile with the same key."""
        upkeep, catalogue = self._upkeep, self._upkeep.catalogue
        async with self._changing:
            known = upkeep.accounts.find(name_of_key(request.key))
            if known is not None:
                return known
            upkeep.accounts.refuse_too_many(account.user, self._names)
            key = ApplicationKey(f"{account.key.title}: {request.name}"[:_NAME], request.key)
            new = Account(key, account.user, time.monotonic(), request.name, AccountRole.PREPARED)
            same = (each.made for each in upkeep.accounts.of_user(account.user) if each.kept == request.name)
            new.made, new.folder = max(time.time_ns(), 1 + max(same, default=0)), folder  # that clock may be put back
            await upkeep.index.write(
                lambda: catalogue.add_application(new), lambda: catalogue.remove_application(new)
            )
            upkeep.accounts.add(new)
            return new

    async def _write_owner(self, partitions: Iterable[KeptPartition], owner: Account, former: Account) -> None:
        numbers, catalogue = [kept.number for kept in partitions], self._upkeep.catalogue
        write = self._upkeep.index.write
        await write(lambda: catalogue.move(numbers, owner), lambda: catalogue.move(numbers, former))

    async def _give_roles(self, *roles: tuple[Account, AccountRole]) -> None:
        catalogue, before = self._upkeep.catalogue, [(account, account.role) for account, _ in reversed(roles)]
        await self._upkeep.index.write(lambda: catalogue.give_roles(roles), lambda: catalogue.give_roles(before))
        self._upkeep.accounts.give_roles(roles)

    def _found(self, account: Account, request: _AboutResult) -> Account | None:
        found = self._upkeep.accounts.find(name_of_key(request.key))
        is_own = found is not None and (found.user, found.kept) == (account.user, request.name)
        return found if is_own else None

    def _write(self, folder: str, piece: PrepareKept, word: FolderWord) -> None:
        if not Path(folder).is_dir():
            self._upkeep.folders.make(folder)
        write_description(folder, piece.description, piece.offset)
        write_word(folder, word)

    def _refuse_hidden(self) -> None:
        if self._upkeep.folders.hides_another:
            raise StorageError(
                "this host's shuffle service has a folder of another index (its log names it), so it can't know which"
                " results are kept here: its operator must mount, or name, the folder that has that index"
            )


def _move(partitions: Iterable[KeptPartition], former: Account, owner: Account) -> None:
    for kept in list(partitions):
        former.remove(kept)
        owner.add(kept)


def _there(account: Account, name: str, partitions: tuple[PartitionId, ...]) -> list[KeptPartition]:
    found = [account.partitions.get(partition) for partition in partitions]
    there = [kept for kept in found if kept is not None and kept.state is KeptState.THERE]
    if len(there) < len(found):
        raise PartitionLostError(f"the result {name} can't be kept: a partition of it is not there any more")
    return there


def _read(folder: str, offset: int) -> bytes:
    try:
        with Path(folder, DESCRIPTION).open("rb") as file:
            file.seek(max(0, offset))
            return file.read(PIECE_BYTES)
    except OSError as error:
        raise PartitionLostError(f"the description of a result, in {folder}, can't be read: {error}") from error
