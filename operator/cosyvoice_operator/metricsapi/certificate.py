"""The serving certificate and the CA that signs it: made, renewed in time, written as a Secret's data. Pure but for the
draw of keys."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
SERVING_DAYS = 90
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)


@dataclass(frozen=True, slots=True)
class ServingIdentity:
    """What the Secret holds. Clients trust the CA, and so a new serving certificate before they have seen it."""

    ca: Pair
    serving: Pair

    @property
    def ca_bundle(self) -> bytes:
        """PEM of what a client has to trust."""
        return self.ca.certificate

    @property
    def expires(self) -> datetime:
        return self.serving.parsed().not_valid_after_utc


def renewed(current: ServingIdentity | None, names: Sequence[str], now: datetime) -> ServingIdentity:
    """Return the identity to use: `current` itself while it is good, otherwise a new one.

    names: DNS names to serve under, the first one the common name. A certificate is renewed when a third of its life is
    left or when it does not bear these names; the CA when it would not outlive a new serving certificate.
    """
    ca = current.ca if current else None
    if ca is None or ca.parsed().not_valid_after_utc < now + timedelta(days=SERVING_DAYS):
        ca = _make_ca(now)
    elif current and _serves(current.serving.parsed(), names, now) and _issued_by(current.serving, ca):
        return current
    return ServingIdentity(ca, _make_serving(ca, names, now))


def client_renewed(current: Pair | None, ca: Pair, name: str, now: datetime) -> Pair:
    """The client certificate of `name` to use: `current` while it is good for `ca` and two thirds of its life are not
    over, otherwise a new one."""
    if current is not None:
        certificate = current.parsed()
        lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        fresh = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - lifetime / 3
        if fresh and _issued_by(current, ca):
            return current
    return _signed(ca, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), ExtendedKeyUsageOID.CLIENT_AUTH, now)


def pair_of(certificate: bytes, key: bytes) -> Pair | None:
    """None unless both parse and belong together."""
    pair = Pair(certificate, key)
    try:
        parsed = load_pem_private_key(key, None)
        if not isinstance(parsed, ec.EllipticCurvePrivateKey) or pair.parsed().public_key() != parsed.public_key():
            return None
    except (ValueError, TypeError):
        return None
    return pair


def to_secret_data(identity: ServingIdentity) -> dict[str, str]:
    """The `data` of the Secret, base64 as the API wants it."""
    files = {
        "ca.crt": identity.ca.certificate,
        "ca.key": identity.ca.key,
        "tls.crt": identity.serving.certificate,
        "tls.key": identity.serving.key,
    }
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def from_secret_data(data: Mapping[str, str]) -> ServingIdentity | None:
    """Read what `to_secret_data` wrote; None when something is missing or is no certificate and key."""
    try:
        files = {
            name: base64.b64decode(data[name], validate=True) for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")
        }
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None
    ca, serving = pair_of(files["ca.crt"], files["ca.key"]), pair_of(files["tls.crt"], files["tls.key"])
    return ServingIdentity(ca, serving) if ca and serving else None


def server_context(identity: ServingIdentity, client_ca: str, *, required: bool = False) -> ssl.SSLContext:
    """TLS for the server: shows the serving certificate, asks clients for one and checks it against `client_ca` (PEM).

    Unless `required`, a client without a certificate gets through the handshake, so that it can be told 401. Raises
    ssl.SSLError when client_ca is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=client_ca)
    _load_chain(context, identity.serving)
    return context


def _load_chain(context: ssl.SSLContext, pair: Pair) -> None:
    """Python reads keys from files alone; a memory file keeps the key off every disk."""
    descriptor = os.memfd_create("serving")
    try:
        os.write(descriptor, pair.certificate + pair.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _serves(certificate: x509.Certificate, names: Sequence[str], now: datetime) -> bool:
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    try:
        borne = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return (
        certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - lifetime / 3
        and borne.get_values_for_type(x509.DNSName) == list(names)
    )


def _issued_by(pair: Pair, ca: Pair) -> bool:
    try:
        pair.parsed().verify_directly_issued_by(ca.parsed())
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _make_ca(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"cosyvoice-metrics-api-ca@{now.timestamp():.0f}")])
    certificate = (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate, key)


def _make_serving(ca: Pair, names: Sequence[str], now: datetime) -> Pair:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    borne = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    return _signed(ca, subject, ExtendedKeyUsageOID.SERVER_AUTH, now, borne)


def _signed(
    ca: Pair,
    subject: x509.Name,
    usage: x509.ObjectIdentifier,
    now: datetime,
    names: x509.SubjectAlternativeName | None = None,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    ca_key = load_pem_private_key(ca.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    builder = (
        _builder(subject, ca.parsed().subject, key, now, SERVING_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return _pem(builder.sign(ca_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, key_cert_sign: bool = False, crl_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
