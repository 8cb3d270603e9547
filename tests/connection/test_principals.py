# SPDX-License-Identifier: Apache-2.0
"""Users and applications of a service that serves several: who comes in, as whom, and what they may ask for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from network_parts import certificate, run, wait_until
from penstock.connection.door import Door
from penstock.connection.handshake import MAX_IDENTITY, Credentials, Service
from penstock.connection.opening import Opener, OpeningSettings
from penstock.connection.principals import (
    KeyFile,
    Principal,
    application_secret,
    key_line,
    own_secret,
    read_keys,
    user_key,
)
from penstock.connection.protection import Protection
from penstock.connection.transport import Endpoint
from penstock.errors import AuthenticationError, ForeignError, SettingError
from penstock.settings import AccessSettings

ALICE = Principal("alice", "app-1", "host-1-7-abc")


def key_file(folder: Path, *users: str) -> Path:
    """A key file of these users."""
    path = folder / "keys"
    path.touch(0o600)
    path.write_text("# users of the tests\n\n" + "".join(f"{key_line(user)}  # {user}\n" for user in users))
    return path


def credentials(path: Path, principal: Principal) -> Credentials:
    """Those by which a process of this application comes in."""
    user, key = user_key(str(path), principal.user)
    return Credentials(principal.identity, application_secret(key, user, principal.application))


def test_each_application_comes_in_by_its_own_secret_and_no_other(tmp_path: Path) -> None:
    """Known are user, application and process once inside; the secret of one application opens nothing as another."""
    path = key_file(tmp_path, "alice", "bob")
    alice = credentials(path, ALICE)
    others = {
        "another application": Principal("alice", "app-2", "host-1-7-abc"),
        "another user": Principal("bob", "app-1", "host-1-7-abc"),
        "nobody known": Principal("carol", "app-1", "host-1-7-abc"),
    }

    async def main() -> None:
        inside: list[tuple[Endpoint, str]] = []
        protection = Protection(certificate())
        transport = protection.transport()
        door = Door[Endpoint](Service.PARTITIONS, KeyFile("service", path), lambda *who: inside.append(who))
        listener = await transport.listen("tls://127.0.0.1:0", door.come)

        async def come(shown: Credentials) -> None:
            opener = Opener(
                protection.towards(listener.address), Service.PARTITIONS, shown, OpeningSettings(pauses=())
            )
            (await opener.open(listener.address)).close()

        await come(alice)
        await wait_until(lambda: bool(inside))
        assert Principal.of(inside[0][1]) == ALICE
        for principal in others.values():
            with pytest.raises(AuthenticationError):
                await come(Credentials(principal.identity, alice.secret))
        with pytest.raises(AuthenticationError):
            await come(Credentials("no principal at all", alice.secret))
        await wait_until(lambda: door.refused == 4)
        assert len(inside) == 1
        listener.close()
        door.close()
        inside[0][0].close()

    run(main, "asyncio")


def test_what_belongs_to_another_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An application asks for its own; kept results are for all applications of their user."""
    caplog.set_level(logging.WARNING, "penstock.connection")
    ALICE.check_owns("alice", "app-1", "partition 3")
    ALICE.check_is_user("alice", "result words")
    assert not caplog.text
    with pytest.raises(ForeignError, match="partition 3 is not of application app-1"):
        ALICE.check_owns("alice", "app-2", "partition 3")
    with pytest.raises(ForeignError, match="result words is not of user alice"):
        ALICE.check_is_user("bob", "result words")
    assert "refused partition 3 to alice/app-1/host-1-7-abc, for it is alice/app-2's" in caplog.text


@pytest.mark.parametrize(
    "identity", ["alice", "alice/app-1", "alice/app-1/a/b", "alice/../x", "/app-1/x", "a b/app/x", f"{'a' * 101}/b/c"]
)
def test_an_identity_that_names_no_principal_is_refused(identity: str) -> None:
    """Names never become paths, so none has a slash, nor begins with a dot."""
    with pytest.raises(AuthenticationError):
        Principal.of(identity)


def test_the_longest_names_of_spark_fit() -> None:
    """User, Spark's application id with our suffix, and a host's name of 63 letters fit one identity."""
    longest = Principal("u" * 64, "application_1700000000000_123456-0123abcd", "h" * 63 + "-4194304-abcdef")
    assert len(longest.identity) <= MAX_IDENTITY


def test_a_key_file_is_read_again_when_it_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line that is gone keeps its user out; a file that is broken meanwhile changes nothing, and is logged."""
    path = key_file(tmp_path, "alice", "bob")
    keys = KeyFile("service", path)
    own = credentials(path, ALICE)
    assert keys.secret_of(ALICE.identity) == own.secret
    path.write_text("alice\n")
    assert keys.secret_of(ALICE.identity) == own.secret
    assert "line 1: a user's name and a key are expected" in caplog.text
    path.write_text(key_line("bob"))
    assert keys.secret_of(ALICE.identity) is None
    assert keys.secret_of("bob/x/y") is not None
    path.unlink()
    assert keys.secret_of("bob/x/y") is not None


def test_a_key_file_of_others_or_with_a_short_key_is_refused(tmp_path: Path) -> None:
    """Its group must not read it; no key and no secret is in an error."""
    path = key_file(tmp_path, "alice")
    path.chmod(0o640)
    with pytest.raises(SettingError, match="chmod 600"):
        read_keys(path)
    path.chmod(0o600)
    path.write_text("alice c2hvcnQ=")
    with pytest.raises(SettingError, match="fewer than 32 bytes") as refused:
        read_keys(path)
    assert "c2hvcnQ" not in str(refused.value)
    with pytest.raises(SettingError, match="can't be read"):
        read_keys(tmp_path / "none")
    with pytest.raises(SettingError, match="is no name of a user"):
        key_line("../alice")


def test_an_application_has_its_users_secret_and_tells_nobody_the_key(tmp_path: Path) -> None:
    """The driver alone reads the file; without one the secret is the one that was drawn."""
    path = key_file(tmp_path, "alice")
    told, secret = own_secret(AccessSettings(key_file=str(path)), "app-1", b"drawn")
    assert told == AccessSettings(user="alice")
    assert secret == KeyFile("service", path).secret_of(ALICE.identity)
    assert own_secret(AccessSettings(), "app-1", b"drawn") == (AccessSettings(), b"drawn")


def test_a_file_with_one_user_names_it(tmp_path: Path) -> None:
    """The setting says which, where it has several."""
    assert user_key(str(key_file(tmp_path, "alice")))[0] == "alice"
    several = str(key_file(tmp_path, "alice", "bob"))
    assert user_key(several, "bob")[0] == "bob"
    for missing in ("", "carol"):
        with pytest.raises(SettingError, match=r"has keys of alice, bob.*access\.user"):
            user_key(several, missing)
