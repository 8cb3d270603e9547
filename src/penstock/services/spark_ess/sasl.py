# SPDX-License-Identifier: Apache-2.0
"""The login with `spark.authenticate`: SASL DIGEST-MD5 as Spark uses it, both sides proving the secret. Pure.

Rules: quality of protection is `auth`: who is there is proved once, and what follows is plain text. The service's own
proof is checked too, so no process without the secret passes for it. Limit: MD5 is what Spark's protocol asks for; a
secret that is long and random bears that. A service that demands SASL encryption is refused: its ciphers are 3DES and
RC4.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import struct
from typing import TYPE_CHECKING

from penstock.errors import AuthenticationError

if TYPE_CHECKING:
    from penstock.services.spark_ess.seals import WireSeal

_TAG = b"\xea"
_USER = base64.b64encode(b"sparkSaslUser").decode()
_URI = "null/default"
_COUNT = "00000001"
_ITEM = re.compile(r'\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^,]*))\s*(?:,|$)')


class SaslLogin:
    """One login. Life: `first`, then `answer` until it gives None."""

    name = "SASL"
    seal: WireSeal | None = None

    def __init__(self, application: str, secret: str) -> None:
        self._application = application
        self._password = base64.b64encode(secret.encode()).decode()
        self._proof = ""
        """The service's proof, as it must be."""

    def first(self) -> bytes:
        """The body of the first request."""
        return self._message(b"")

    def answer(self, body: bytes) -> bytes | None:
        """The body of the next request, or None: this side believes the other. AuthenticationError if it does not."""
        found = _items(body)
        if self._proof:
            if not hmac.compare_digest(found.get("rspauth", ""), self._proof):
                raise AuthenticationError("the shuffle service did not prove that it knows the application's secret")
            return None
        nonce, realm = found.get("nonce", ""), found.get("realm", "")
        offered = [each.strip() for each in found.get("qop", "auth").split(",")]
        if not nonce or "auth" not in offered:
            raise AuthenticationError(
                f"the shuffle service offers {', '.join(offered)} and nothing else: SASL encryption"
                " (spark.network.sasl.serverAlwaysEncrypt) is not spoken here"
            )
        return self._message(self._response(realm, nonce))

    def _response(self, realm: str, nonce: str) -> bytes:
        own = base64.b64encode(secrets.token_bytes(24)).decode()
        known = _md5(f"{_USER}:{realm}:{self._password}".encode())
        key = _md5(known + f":{nonce}:{own}".encode()).hex()

        def proof(method: str) -> str:
            what = _md5(f"{method}:{_URI}".encode()).hex()
            return _md5(f"{key}:{nonce}:{_COUNT}:{own}:auth:{what}".encode()).hex()

        self._proof = proof("")
        return (
            f'charset=utf-8,username="{_USER}",realm="{realm}",nonce="{nonce}",nc={_COUNT},cnonce="{own}",'
            f'digest-uri="{_URI}",maxbuf=65536,response={proof("AUTHENTICATE")},qop=auth'
        ).encode()

    def _message(self, payload: bytes) -> bytes:
        name = self._application.encode()
        return _TAG + struct.pack(">i", len(name)) + name + struct.pack(">i", len(payload)) + payload


def _items(body: bytes) -> dict[str, str]:
    text = body.decode("utf-8", errors="replace")
    return {name: quoted or plain for name, quoted, plain in _ITEM.findall(text)}


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
