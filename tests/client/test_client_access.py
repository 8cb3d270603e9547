# SPDX-License-Identifier: Apache-2.0
"""The arguments by which a client connects: which service they mean, in whose name, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.client.access import access_to
from penstock.connection.principals import application_secret, key_line, key_of
from penstock.errors import SettingError


def test_a_path_is_the_host_service(tmp_path: Path) -> None:
    """Its socket is a setting; the application has a name and a secret that nobody has had before."""
    one, other = (access_to(str(tmp_path / "s.sock"), "", "", "", None) for _ in range(2))
    assert one.service == "external"
    assert one.settings.external.socket == str(tmp_path / "s.sock")
    assert one.application != other.application
    assert one.secret != other.secret
    assert access_to("./s.sock", "", "", "", None).settings.external.socket == str(Path.cwd() / "s.sock")
    assert not one.lasts


def test_host_and_port_are_a_remote_manager(tmp_path: Path) -> None:
    """The secret is that of a Spark application of this user and name; the key goes no further."""
    line = key_line("alice")
    _, key = key_of(line)
    access = access_to("manager:7450", "", line, "notebook", {"spark.penstock.remote.retryTimeout": "5s"})
    assert access.service == "remote"
    assert access.secret == application_secret(key, "alice", "notebook")
    assert access.settings.remote.manager == "manager:7450"
    assert access.settings.remote.retry_timeout == 5.0
    assert access.settings.access.user == "alice"
    assert access.lasts
    assert not access_to("manager:7450", "", line, "", None).lasts
    bare = line.split()[1]
    assert access_to("manager:7450", "alice", bare, "notebook", None).secret == access.secret
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text(line)
    assert access_to("manager:7450", "", file, "notebook", None).secret == access.secret


def test_it_travels_and_shows_no_secret() -> None:
    """Another process gets it pickled; nobody sees the secret in a log."""
    access = access_to("/s.sock", "", "", "", None)
    assert pickle.loads(pickle.dumps(access)) == access  # noqa: S301 - our own
    assert repr(access.secret)[2:10] not in repr(access)


@pytest.mark.parametrize(
    ("address", "user", "key", "application", "why"),
    [
        ("manager", "", "alice x", "", "no address"),
        ("manager:7450", "alice", "", "", "penstock key USER"),
        ("manager:7450", "", "x", "", "a user's name and a key are expected"),
        ("manager:7450", "bob", key_line("alice"), "", "is one of alice, not of bob"),
        ("manager:7450", "", key_line("alice"), "a/b", "can't be known"),
        ("/s.sock", "alice", "", "", "knows its users from the kernel"),
    ],
    ids=["no port", "no key", "no user", "another user's key", "a name with a slash", "a user at a socket"],
)
def test_what_is_refused(address: str, user: str, key: str, application: str, why: str) -> None:
    """Each with the reason, and never with the key."""
    with pytest.raises(SettingError, match=why) as refused:
        access_to(address, user, key, application, None)
    assert not key or key.rsplit(maxsplit=1)[-1] not in str(refused.value) or len(key) < 20


def test_other_settings_are_refused() -> None:
    """A key without our prefix would be forgotten without a word."""
    with pytest.raises(SettingError, match=r"spark\.executor\.cores"):
        access_to("/s.sock", "", "", "", {"spark.executor.cores": "2"})
