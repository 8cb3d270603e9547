# SPDX-License-Identifier: Apache-2.0
"""The folders of a host service when it starts, and what an operator may do about them.

Rules: a start takes what is its own, and changes nothing else. Folders without an id, of a version that wrote none or
on a new disk, become the index's by one command (`adopt`), and a lost index is made again out of what the folders say
by another (`rebuild_index`). Both say what they have done, and remove nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.external.accounts import Account, AccountRole, KeptPartition
from penstock.external.catalogue import Catalogue
from penstock.external.folders import KIND, ServiceFolders, found_folders, size_of
from penstock.external.keeper import word_of
from penstock.external.keys import ApplicationKey
from penstock.external.manifests import CURRENT, FolderWord, read_word, write_description, write_whole, write_word
from penstock.external.requests import KeptState
from penstock.machine.owned_folders import OpenFolders, open_folders, read_id
from penstock.partition.directories import look
from penstock.shuffle import DatasetId, PartitionId

_REBUILT = f".{KIND.index}"
_MODE = 0o711
"""Others may pass through to the socket, and not look into anything."""


def open_service_folders(folders: Sequence[Path]) -> OpenFolders[Catalogue]:
    """Take these folders, and open the index in the one that has it; SettingError, StorageError."""
    opened = open_folders(KIND, folders, _MODE, lambda home: Catalogue(home / KIND.index))
    opened.index.used()
    return opened


def adopt(folders: Sequence[Path]) -> str:
    """Give the id of the index to folders that have none; what was done."""
    opened = open_folders(KIND, folders, _MODE, lambda home: Catalogue(home / KIND.index, adopts=True), adopts=True)
    try:
        opened.index.used()
        words = _write_words(opened.index, ServiceFolders(opened.sorted.ours, 0))
    finally:
        opened.index.close()
        opened.let_go()
    where = ", ".join(map(str, opened.sorted.ours))
    return f"{where}: these are the folders of the index {opened.index.id} now; {words} words were written"


def rebuild_index(folders: Sequence[Path]) -> str:
    """Make the index again that a folder's id is of; what was found. SettingError where there is an index."""

    def made_again(home: Path) -> Catalogue:
        for left in home.glob(f"{_REBUILT}*"):
            left.unlink()
        return Catalogue(home / _REBUILT, id=read_id(home))

    opened = open_folders(KIND, folders, _MODE, made_again, rebuilds=True)
    try:
        found = [(each, read_word(each)) for root in opened.sorted.ours for each in found_folders(root)]
        words = {str(folder): word for folder, word in found if word is not None}
        accounts = _accounts(words)
        for account in accounts:
            opened.index.add_application(account)
            for kept in account.numbers.values():
                opened.index.add(account, kept)
        opened.index.close()
        for left in (opened.home / f"{KIND.index}{each}" for each in ("-wal", "-shm")):
            if left.exists():  # of the lost index: SQLite would write it into this one
                left.rename(left.with_name(f"lost-{left.name}"))
        (opened.home / _REBUILT).rename(opened.home / KIND.index)
    finally:
        opened.index.close()
        opened.let_go()
    partitions = sum(len(each.numbers) for each in accounts)
    return (
        f"{opened.home / KIND.index}: rebuilt, with {partitions} partitions of {len(accounts)} applications and"
        f" results; {len(found) - len(words)} folders do not say what they hold, and stay"
    )


def _accounts(words: dict[str, FolderWord]) -> list[Account]:
    """The accounts that the words of folders are of. A name is the newest result's that has had it."""
    accounts: dict[bytes, Account] = {}
    taken: dict[str, Account] = {}
    results = [(word.made, folder, word) for folder, word in words.items() if word.is_result]
    named: set[tuple[int, str]] = set()
    for _, folder, word in sorted(results, reverse=True):
        role = AccountRole.PREPARED
        if Path(folder, CURRENT).exists():
            role = AccountRole.FORMER if (word.user, word.kept) in named else AccountRole.CURRENT
            named.add((word.user, word.kept))
        account = Account(ApplicationKey(word.title, word.key), word.user, kept=word.kept, role=role)
        account.folder, account.made = folder, word.made
        accounts[word.key] = account
        taken.update(dict.fromkeys(word.folders, account))
    for number, (folder, word) in enumerate(words.items(), 1):
        if word.is_result:
            continue
        owner = taken.get(Path(folder).name) or accounts.get(word.key)
        if owner is None:
            owner = accounts[word.key] = Account(ApplicationKey(word.title, word.key), word.user)
        identity = PartitionId(DatasetId.of(word.partition), word.place, word.attempt)
        kept = KeptPartition(number, identity, word.subpartitions, KeptState.THERE, folder, size_of(folder))
        if identity not in owner.partitions:
            owner.add(kept)
    return list(accounts.values())


def _write_words(index: Catalogue, folders: ServiceFolders) -> int:
    """Have the folders of a version that wrote no words say what they hold."""
    written = 0
    described = dict(index.descriptions())
    for account in list(index.accounts()):
        there = [each for each in account.numbers.values() if each.state is KeptState.THERE]
        places = {each.number: folders.place_of(each.folder) for each in there}
        for kept in there:
            folder = places[kept.number]
            if folder and Path(folder).is_dir() and read_word(folder) is None:
                write_word(folder, word_of(account, kept))
                written += 1
        if account.key.name in described:
            spaces = [look(place) for place in folders.places]
            account.folder, account.made = folders.choose(spaces), time.time_ns()
            index.place(account)
            folders.make(account.folder)
            _describe(account, described[account.key.name], places.values())
            written += 1
    return written


def _describe(account: Account, description: bytes, places: Iterable[str]) -> None:
    key, names = account.key, tuple(Path(each).name for each in places if each)
    write_description(account.folder, description)
    word = FolderWord(key.title, key.key, account.user, kept=account.kept, made=account.made, folders=names)
    write_word(account.folder, word)
    write_whole(account.folder, CURRENT, b"")
