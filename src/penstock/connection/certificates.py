# SPDX-License-Identifier: Apache-2.0
"""Certificates out of files, or made anew, and the contexts of TLS 1.3 that are made of them.

A driver makes one for its application, which is its own authority: a process that has the application's secret has it
too, trusts it alone, and shows it to others. It lives in memory, as long as its application. An operator's are files.

Rules. Nothing older than TLS 1.3 is spoken. No name is checked against a certificate: the handshake after it proves
the secret for exactly this certificate (`handshake`), so another certificate, of any authority or of none,
is worth nothing. A side without authorities relies on that proof alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.connection.certificate import Certificate
from penstock.errors import SettingError

_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"
_LIFE = dt.timedelta(days=3650)
_SKEW = dt.timedelta(days=1)
"""Clocks of hosts may be so far off."""


def read_certificate(chain: str, key: str, authorities: str) -> Certificate:
    """Out of files; raises SettingError for one that can't be read or is not what it should be."""
    found = Certificate(*(_read(path) if path else b"" for path in (chain, key or chain, authorities)))
    try:
        client_context(found)
        if chain:
            server_context(found)
            fingerprint_of(found)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingError(
            f"the certificate {chain or '(none)'} with the key {key or chain or '(none)'} and the authorities"
            f" {authorities or '(none)'} can't be used: {error}. They must be PEM files, the key without a password:"
            " see spark.penstock.tls.certificate, .key and .authorities"
        ) from error
    return found


def fingerprint_of(certificate: Certificate) -> bytes:
    """SHA-256 of the certificate itself, without its chain, as TLS's binding tls-server-end-point has it."""
    text = certificate.chain.decode("ascii", "replace")
    begin = max(0, text.find(_BEGIN))
    return fingerprint(ssl.PEM_cert_to_DER_cert(text[begin : text.find(_END) + len(_END)]))


def fingerprint(encoded: bytes) -> bytes:
    """The fingerprint of a certificate in DER."""
    return hashlib.sha256(encoded).digest()


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """The context of the side that is connected to. Raises OSError, or ValueError for a key with a password."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # connections are few and long: no session is taken up again
    with _file_of(certificate.chain + b"\n" + certificate.key) as path:
        context.load_cert_chain(path, password=_no_password)
    return context


def client_context(certificate: Certificate) -> ssl.SSLContext:
    """The context of the side that connects. Raises OSError, or ValueError for authorities that are not PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate.authorities:
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # it may be its own authority
        context.load_verify_locations(cadata=certificate.authorities.decode("ascii"))
    return context


def new_certificate(name: str) -> Certificate:
    """A certificate that is its own authority, and its key; raises SettingError where no library makes one."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise SettingError(
            "no certificate can be made, for the library cryptography is missing: install it beside the driver, name"
            " certificates of your own (spark.penstock.tls.certificate), or, on a network that you trust, set"
            " spark.penstock.tls.mode=never"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    now = dt.datetime.now(dt.UTC)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(own, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
    )
    encoding = serialization.Encoding.PEM
    chain = builder.sign(key, hashes.SHA256()).public_bytes(encoding)
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(chain, secret, chain)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingError(
            f"{path} can't be read on {os.uname().nodename}: {error.strerror}. Each host needs the files of"
            " spark.penstock.tls at these paths"
        ) from error


@contextlib.contextmanager
def _file_of(data: bytes) -> Iterator[str]:
    """A path of this data for a library that reads files only; in memory where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("penstock-certificate")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:  # of this user alone
            file.write(data)
            file.flush()
            yield file.name


def _no_password() -> bytes:
    """A key with a password is refused rather than asked for on a terminal that may not be there."""
    raise ValueError("the key has a password")
