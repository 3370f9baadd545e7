"""When a serving certificate is kept and when it is renewed, and that TLS clients accept what is made."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest

from cosyvoice_operator.metricsapi.certificate import (
    ServingIdentity,
    from_secret_data,
    renewed,
    server_context,
    to_secret_data,
)

NAMES = ["metrics.speech.svc", "metrics.speech.svc.cluster.local"]
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def identity() -> ServingIdentity:
    return renewed(None, NAMES, NOW)


def test_a_good_certificate_is_kept(identity: ServingIdentity) -> None:
    assert renewed(identity, NAMES, NOW + timedelta(days=59)) is identity


def test_a_certificate_is_renewed_by_the_same_ca_when_a_third_of_its_life_is_left(identity: ServingIdentity) -> None:
    later = renewed(identity, NAMES, NOW + timedelta(days=61))
    assert later.ca == identity.ca
    assert later.expires > identity.expires


def test_a_certificate_is_renewed_when_the_service_has_another_name(identity: ServingIdentity) -> None:
    assert renewed(identity, ["other.speech.svc"], NOW).serving != identity.serving


def test_a_certificate_that_the_ca_has_not_signed_is_replaced(identity: ServingIdentity) -> None:
    stranger = renewed(None, NAMES, NOW)
    assert renewed(ServingIdentity(identity.ca, stranger.serving), NAMES, NOW).serving != stranger.serving


def test_a_ca_that_would_not_outlive_a_new_certificate_is_replaced_too(identity: ServingIdentity) -> None:
    assert renewed(identity, NAMES, NOW + timedelta(days=3600)).ca != identity.ca


def test_the_secret_brings_back_what_was_put_in(identity: ServingIdentity) -> None:
    assert from_secret_data(to_secret_data(identity)) == identity


@pytest.mark.parametrize("broken", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
def test_a_secret_with_a_missing_or_spoilt_entry_holds_no_certificate(identity: ServingIdentity, broken: str) -> None:
    data = to_secret_data(identity)
    assert from_secret_data({name: text for name, text in data.items() if name != broken}) is None
    assert from_secret_data(data | {broken: "bm90IGEga2V5"}) is None


def test_a_key_of_another_certificate_is_no_identity(identity: ServingIdentity) -> None:
    other = to_secret_data(renewed(None, NAMES, NOW))
    assert from_secret_data(to_secret_data(identity) | {"tls.key": other["tls.key"]}) is None


def test_a_client_that_trusts_the_bundle_completes_the_handshake(identity: ServingIdentity) -> None:
    server = server_context(identity, client_ca=identity.ca.certificate.decode())
    client = ssl.create_default_context(cadata=identity.ca_bundle.decode())  # verifies as strictly as Python can
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=NAMES[0]),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    pending = set(sides)
    for _ in range(4):
        for side in sides:
            if side in pending:
                try:
                    side.do_handshake()
                    pending.discard(side)
                except ssl.SSLWantReadError:
                    pass
    assert not pending
