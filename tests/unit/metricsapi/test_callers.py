"""Who is let in: the front proxy and nobody else, on behalf of the user it names."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from cosyvoice_operator.metricsapi.callers import FrontProxy, Unauthenticated, authenticate, read_front_proxy

PROXY = FrontProxy("PEM", ["front-proxy-client"], ["X-Remote-User"], ["X-Remote-Group"], ["X-Remote-Extra-"])
HEADERS = [("x-remote-user", "hpa"), ("X-Remote-Group", "a"), ("X-Remote-Group", "b")]


def certificate(name: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "k8s"),), (("commonName", name),))}


def test_the_front_proxy_speaks_for_its_user() -> None:
    caller = authenticate(PROXY, certificate("front-proxy-client"), CIMultiDict(HEADERS))
    assert (caller.user, caller.groups) == ("hpa", ("a", "b", "system:authenticated"))


def test_a_user_without_any_group_is_authenticated_all_the_same_but_nobody_is_not() -> None:
    shown = certificate("front-proxy-client")
    groups = {
        user: authenticate(PROXY, shown, CIMultiDict([("X-Remote-User", user)])).groups
        for user in ("system:kube-aggregator", "system:anonymous")
    }
    assert groups == {"system:kube-aggregator": ("system:authenticated",), "system:anonymous": ()}


def test_further_attributes_of_the_user_are_passed_on() -> None:
    headers = CIMultiDict([*HEADERS, ("X-Remote-Extra-Scopes%2fA", "one"), ("X-Remote-Extra-Scopes%2fA", "two")])
    assert authenticate(PROXY, certificate("front-proxy-client"), headers).extra == (("scopes/a", ("one", "two")),)


@pytest.mark.parametrize("shown", [None, {}])
def test_headers_without_a_certificate_are_worth_nothing(shown: Any) -> None:
    with pytest.raises(Unauthenticated, match="no client certificate"):
        authenticate(PROXY, shown, CIMultiDict(HEADERS))


def test_a_certificate_of_the_right_ca_but_with_another_name_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="certificate of kubelet may not speak for users"):
        authenticate(PROXY, certificate("kubelet"), CIMultiDict(HEADERS))


def test_any_name_will_do_where_the_cluster_names_none() -> None:
    proxy = FrontProxy("PEM", [], ["X-Remote-User"], [], [])
    assert authenticate(proxy, certificate("whoever"), CIMultiDict(HEADERS)).user == "hpa"


def test_a_request_for_nobody_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="no user in X-Remote-User"):
        authenticate(PROXY, certificate("front-proxy-client"), CIMultiDict())


def test_the_config_map_says_whom_to_trust() -> None:
    proxy = read_front_proxy(
        {
            "requestheader-client-ca-file": "PEM",
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
    )
    assert proxy == PROXY


def test_a_cluster_without_aggregation_is_told_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="start kube-apiserver with --requestheader-client-ca-file"):
        read_front_proxy({"client-ca-file": "PEM"})
