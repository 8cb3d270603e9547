# SPDX-License-Identifier: Apache-2.0
"""The users and applications of a service that serves several, and the secrets by which they prove who they are.

A user has a key, which the operator gives to the service and to that user's drivers only. The secret
of an application is derived from it (HMAC-SHA256 over its name), so a service needs no list of applications and knows
all of them after a restart. Tasks and environments have the secret of their application alone: it opens nothing of
another application of the same user, and the key can't be found from it.

    alice  s0meBase64...     one line for each user: name, key; `#` begins a comment

A key file is its owner's alone. A service looks at it with each connection and reads it again where it has changed,
so a line that is removed keeps its user out from then on. Non-goal: a user of a service is no user of the system.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import AuthenticationError, ForeignError, SettingError
from penstock.settings import AccessSettings

log = logging.getLogger("penstock.connection")

KEY_BYTES: Final = 32
_PURPOSE: Final = b"penstock application\0"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


@dataclass(frozen=True, slots=True)
class Principal:
    """One process of an application of a user. Its `identity` is what the handshake proves."""

    user: str
    application: str
    process: str

    def __post_init__(self) -> None:
        for name in (self.user, self.application, self.process):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name[:100]!a} is no name: letters, digits and ._@+- are, up to 100 of them")

    @classmethod
    def of(cls, identity: str) -> Principal:
        """The one with this identity; raises AuthenticationError for one that names none."""
        try:
            return cls(*identity.split("/"))
        except (TypeError, ValueError):
            raise AuthenticationError(f"{identity[:100]!a} names no user, application and process") from None

    @property
    def identity(self) -> str:
        """The name of all three in one."""
        return f"{self.user}/{self.application}/{self.process}"

    def check_owns(self, user: str, application: str, what: str) -> None:
        """Nothing where this is a process of that application; else it is logged, and ForeignError raised."""
        if (self.user, self.application) != (user, application):
            log.warning("refused %s to %s, for it is %s/%s's", what, self.identity, user, application)
            raise ForeignError(f"{what} is not of application {self.application}: it is refused")

    def check_is_user(self, user: str, what: str) -> None:
        """Nothing where this is an application of that user; else it is logged, and ForeignError raised."""
        if self.user != user:
            log.warning("refused %s to %s, for it is %s's", what, self.identity, user)
            raise ForeignError(f"{what} is not of user {self.user}: it is refused")


def application_secret(key: bytes, user: str, application: str) -> bytes:
    """The secret of an application of the user with this key."""
    return hmac.digest(key, _PURPOSE + user.encode() + b"\0" + application.encode(), "sha256")


def key_line(user: str) -> str:
    """A line of a key file, with a new key for this user; raises SettingError for what is no name."""
    if not _NAME.fullmatch(user):
        raise SettingError(f"{user[:100]!a} is no name of a user: letters, digits and ._@+- are")
    return f"{user} {secrets.token_urlsafe(KEY_BYTES)}"


def user_key(path: str, user: str = "") -> tuple[str, bytes]:
    """A user and the key out of a key file: that of the one user in it, where none is named. Raises SettingError."""
    keys = read_keys(Path(path))
    if not user and len(keys) == 1:
        return next(iter(keys.items()))
    if user not in keys:
        known = "names no user" if not keys else f"has keys of {', '.join(sorted(keys))}"
        raise SettingError(f"{path} {known}, not of {user or 'a user that is named'}: see spark.penstock.access.user")
    return user, keys[user]


def key_of(text: str, user: str = "") -> tuple[str, bytes]:
    """A user and the key out of one line of a key file, or out of the key alone. Raises SettingError, with no key."""
    words = text.split()
    words = [user, *words] if len(words) == 1 else words
    key = _key(words, "the key")
    if user not in ("", words[0]):
        raise SettingError(f"the key is one of {words[0]}, not of {user}")
    return words[0], key


def own_secret(access: AccessSettings, application: str, drawn: bytes) -> tuple[AccessSettings, bytes]:
    """The secret of an application, and what its other processes are told: the user, and no way to the key.

    Without a key it is the one that was drawn, which no service knows. Raises SettingError.
    """
    if not access.key_file:
        return access, drawn
    user, key = user_key(access.key_file, access.user)
    return AccessSettings(user), application_secret(key, user, application)


def read_keys(path: Path) -> dict[str, bytes]:
    """The keys of a file, by user; raises SettingError, which says no key."""
    try:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno())
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the key file {path} can't be read: {error}") from error
    if seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or seen.st_uid not in (0, os.geteuid()):
        raise SettingError(f"the key file {path} is not its owner's alone: chmod 600, and own it")
    keys = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            keys[words[0]] = _key(words, f"{path}, line {number}")
    return keys


def _key(words: list[str], where: str) -> bytes:
    if len(words) != 2 or not _NAME.fullmatch(words[0]):
        raise SettingError(f"{where}: a user's name and a key are expected, which `penstock key USER` makes")
    try:
        key = base64.urlsafe_b64decode(words[1] + "=" * (-len(words[1]) % 4))
    except (ValueError, binascii.Error):
        key = b""
    if len(key) < KEY_BYTES:
        raise SettingError(f"{where}: the key has fewer than {KEY_BYTES} bytes, or is not in base64")
    return key


class KeyFile:
    """The secrets of all applications of all users of a key file, for the door of a service (`Secrets`).

    Raises SettingError where the file can't be read at first; later it goes on with the keys that it had.
    """

    def __init__(self, identity: str, path: Path) -> None:
        self.identity = identity
        self._path = path
        self._seen = self._look()
        self._keys: Mapping[str, bytes] = read_keys(path)

    def secret_of(self, peer: str) -> bytes | None:
        """The secret of the application that this peer says it is of; None where there is no such user."""
        self._refresh()
        try:
            principal = Principal.of(peer)
        except AuthenticationError:
            return None
        key = self._keys.get(principal.user)
        return None if key is None else application_secret(key, principal.user, principal.application)

    def _refresh(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = read_keys(self._path)
        except SettingError as error:
            log.error("%s: the users stay as they were", error)  # noqa: TRY400 - the message says it all
        else:
            log.info("%s was read again: %d users", self._path, len(self._keys))

    def _look(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
