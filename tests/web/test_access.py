# SPDX-License-Identifier: Apache-2.0
"""The rule of who may read the page."""

from __future__ import annotations

import pytest

from penstock.observe.http_server import HttpRequest
from penstock.web.access import PageAccess, Verdict

TOKEN = "a-token-of-many-signs"


def request(host: str = "127.0.0.1:4040", token: str | None = None, **headers: str) -> HttpRequest:
    """A request for the page."""
    query = {} if token is None else {"token": token}
    return HttpRequest("GET", "/", query, {"host": host, **headers})


@pytest.fixture
def access() -> PageAccess:
    """A page that goes by one name of its own."""
    return PageAccess(TOKEN, ("Driver.example",))


def test_the_token_opens_and_nothing_else_does(access: PageAccess) -> None:
    """In the address, as a bearer's, or as the cookie that follows; wrong or half ones are none."""
    name, _, rest = access.cookie.partition("=")
    value = rest.partition(";")[0]
    assert access.judge(request(token=TOKEN)) is Verdict.ENTER
    assert access.judge(request(authorization=f"Bearer {TOKEN}")) is Verdict.READ
    assert access.judge(request(cookie=f"other=1; {name}={value}")) is Verdict.READ
    wrong = [
        request(),
        request(token=""),
        request(token=TOKEN[:-1]),
        request(token="\xe9" * 20),
        request(authorization=f"Basic {TOKEN}"),
        request(authorization="Bearer "),
        request(cookie=f"{name}={TOKEN}"),
        request(cookie=f"{name}="),
        request(cookie="\x01=;;"),
        request(token="no", cookie=f"{name}={value}"),
    ]
    assert {access.judge(each) for each in wrong} == {Verdict.UNKNOWN}


def test_the_cookie_is_no_token_and_is_for_this_page_alone(access: PageAccess) -> None:
    """Scripts can't read it, other sites' requests come without it, and another page has another one."""
    assert TOKEN not in access.cookie
    assert access.cookie.endswith("; Path=/; HttpOnly; SameSite=Lax")
    assert PageAccess("another-token-of-many").cookie_name != access.cookie_name
    assert PageAccess().token != PageAccess().token
    assert len(PageAccess().token) >= 32


@pytest.mark.parametrize(
    "host", ["localhost:1", "127.0.0.1:80", "127.0.0.1", "[::1]:8080", "10.1.2.3:9", "driver.EXAMPLE:1"]
)
def test_it_goes_by_its_names_and_by_addresses(access: PageAccess, host: str) -> None:
    """An address as a number can't be a name that somebody else made point here."""
    assert access.judge(request(host, TOKEN)) is Verdict.ENTER


@pytest.mark.parametrize("host", ["", "evil.example:4040", "localhost.evil.example", "127.0.0.1.evil.example:1", "["])
def test_other_names_are_refused_even_with_the_token(access: PageAccess, host: str) -> None:
    """A site that gives its name our address reads nothing."""
    assert access.judge(request(host, TOKEN)) is Verdict.MISDIRECTED
