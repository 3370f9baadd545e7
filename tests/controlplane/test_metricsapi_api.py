"""custom.metrics.k8s.io as kube-apiserver and its users meet it."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import yaml

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.metricsapi.wire import DISCOVERY_TYPE, GROUP
from tests.cluster.control_plane import ControlPlane, _Authority, _free_ports
from tests.controlplane.metrics_harness import (
    NAME,
    SCRAPE_SECONDS,
    Client,
    Fleet,
    Installation,
    eventually,
    installation,
    pool_deployment,
)

pytestmark = pytest.mark.controlplane
V1BETA2 = f"/apis/{GROUP}/v1beta2"


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    name = f"metrics-{uuid.uuid4().hex[:6]}"
    control_plane.run_kubectl("create", "namespace", name)
    told_before = len(control_plane.log_of("kube-apiserver").read_text())
    with installation(control_plane, name, tmp_path_factory.mktemp("installation")) as made:
        asyncio.run(made.serving())
        yield made
        # Nothing of all that made kube-apiserver complain about what it aggregates.
        told = control_plane.log_of("kube-apiserver").read_text()[told_before:].splitlines()
        assert [line for line in told if line.startswith("E") and GROUP in line] == []
    control_plane.run_kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    async with await ApiServer.connect(str(control_plane.kubeconfig)) as made:
        yield made


@pytest.fixture
async def fleet(installed: Installation, api: ApiServer, namespace: str) -> AsyncIterator[Fleet]:
    """Two pools, `one` and `two`, of one worker each, both read."""
    async with Fleet(api, namespace, demand=2.0).run() as made:
        pools = [pool_deployment(namespace, "one"), pool_deployment(namespace, "two")]
        installed.plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(pools))

        async def read() -> bool:
            try:
                return len((await api.request("GET", path(namespace, "*")))["items"]) == 2
            except ApiError:
                return False

        await eventually(read)
        yield made


def path(namespace: str, name: str, metric: str = "gpu_load", version: str = "v1beta2") -> str:
    return f"/apis/{GROUP}/{version}/namespaces/{namespace}/deployments.apps/{name}/{metric}"


async def refused(api: ApiServer, asked: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await api.request("GET", asked)
    return caught.value


async def test_a_pools_metric_is_one_value_about_its_deployment(api: ApiServer, fleet: Fleet) -> None:
    answer = await api.request("GET", path(fleet.namespace, "one"))
    (item,) = answer["items"]
    assert (answer["kind"], answer["apiVersion"]) == ("MetricValueList", f"{GROUP}/v1beta2")
    assert item["describedObject"]["name"] == "one"
    assert (item["metric"]["name"], item["value"]) == ("gpu_load", "1")


async def test_the_older_version_gives_the_same_value_in_its_own_form(api: ApiServer, fleet: Fleet) -> None:
    (item,) = (await api.request("GET", path(fleet.namespace, "one", version="v1beta1")))["items"]
    assert (item["metricName"], item["value"]) == ("gpu_load", "1")


async def test_a_star_means_every_pool_of_the_namespace(api: ApiServer, fleet: Fleet) -> None:
    items = (await api.request("GET", path(fleet.namespace, "*")))["items"]
    assert sorted(item["describedObject"]["name"] for item in items) == ["one", "two"]


async def test_a_label_selector_chooses_among_them(api: ApiServer, fleet: Fleet) -> None:
    selector = quote("tts.cosyvoice.io/pool in (two, three)")
    items = (await api.request("GET", path(fleet.namespace, "*") + f"?labelSelector={selector}"))["items"]
    assert [item["describedObject"]["name"] for item in items] == ["two"]


async def test_a_selector_that_does_not_parse_is_refused(api: ApiServer, fleet: Fleet) -> None:
    error = await refused(api, path(fleet.namespace, "*") + "?labelSelector=a%3D%3D%3Db")
    assert error.code == 400


async def test_a_metric_selector_matches_nothing_and_the_answer_says_why(api: ApiServer, fleet: Fleet) -> None:
    error = await refused(api, path(fleet.namespace, "one") + "?metricLabelSelector=a%3Db")
    assert (error.code, error.reason) == (404, "NotFound")
    assert "gpu_load has no labels" in error.message


async def test_an_unknown_metric_is_refused_with_the_known_ones(api: ApiServer, fleet: Fleet) -> None:
    error = await refused(api, path(fleet.namespace, "one", "cpu_load"))
    assert error.code == 404
    assert error.message == "there is no metric 'cpu_load'; there are gpu_load, gpu_utilization, gpu_memory"


async def test_a_deployment_that_is_not_ours_has_no_metrics(api: ApiServer, fleet: Fleet) -> None:
    error = await refused(api, path(fleet.namespace, "web"))
    assert error.message == f"namespace {fleet.namespace} has no Deployment web of a CosyVoiceService"


async def test_an_unknown_path_is_a_status_too(api: ApiServer, installed: Installation) -> None:
    error = await refused(api, f"{V1BETA2}/nodes/x/gpu_load")
    assert (error.code, error.reason) == (404, "NotFound")


async def test_aggregated_discovery_lists_the_metrics(control_plane: ControlPlane, installed: Installation) -> None:
    admin = Client(control_plane.ca.read_text(), control_plane.ca.parent / "admin")

    async def listed() -> bool:
        _, answer = await admin.get(f"{control_plane.url}/apis", Accept=DISCOVERY_TYPE)
        (group,) = [item for item in answer["items"] if item["metadata"]["name"] == GROUP]
        best = group["versions"][0]
        names = [sub["subresource"] for resource in best.get("resources", ()) for sub in resource["subresources"]]
        return best["version"] == "v1beta2" and "gpu_load" in names and best["freshness"] == "Current"

    await eventually(listed)


async def test_who_may_view_a_namespace_may_read_its_metrics_and_nobody_else(
    control_plane: ControlPlane, installed: Installation, fleet: Fleet
) -> None:
    async with await ApiServer.connect(str(control_plane.kubeconfig_for("viewer"))) as viewer:
        assert (await refused(viewer, path(fleet.namespace, "one"))).code == 403
        grant = ("create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer")
        control_plane.run_kubectl("-n", fleet.namespace, *grant)

        async def allowed() -> bool:
            try:
                return bool(await viewer.request("GET", path(fleet.namespace, "one")))
            except ApiError:
                return False

        await eventually(allowed)
        assert (await refused(viewer, path("default", "one"))).code == 403


class Direct:
    """Requests past kube-apiserver, straight to the replica."""

    def __init__(self, installed: Installation) -> None:
        self.url = f"https://127.0.0.1:{installed.replicas[0].port}"
        secret = json.loads(
            installed.plane.run_kubectl("-n", installed.namespace, "get", "secret", f"{NAME}-serving", "-o", "json")
        )
        self.ca = base64.b64decode(secret["data"]["ca.crt"]).decode()

    async def get(
        self, certificate: Path | None, user: str, group: str = "system:masters", path: str = V1BETA2
    ) -> tuple[int, Any]:
        client = Client(self.ca, certificate)
        return await client.get(f"{self.url}{path}", X_Remote_User=user, X_Remote_Group=group)


@pytest.fixture
def direct(installed: Installation) -> Direct:
    return Direct(installed)


async def test_the_front_proxy_is_let_in(control_plane: ControlPlane, direct: Direct) -> None:
    code, answer = await direct.get(control_plane.front_proxy_ca.parent / "front-proxy-client", "admin")
    assert (code, answer["kind"]) == (200, "APIResourceList")


async def test_a_user_behind_the_front_proxy_needs_the_right_to_read_the_metric(
    control_plane: ControlPlane, direct: Direct, fleet: Fleet
) -> None:
    async def code(pool: str) -> int:
        proxy = control_plane.front_proxy_ca.parent / "front-proxy-client"
        return (await direct.get(proxy, "reader", "readers", path(fleet.namespace, pool)))[0]

    assert await code("one") == 403
    rule = {
        "apiGroups": [GROUP],
        "resources": ["deployments.apps/gpu_load"],
        "resourceNames": ["one"],
        "verbs": ["get"],
    }
    meta = {"name": "reader", "namespace": fleet.namespace}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    reference = {"apiGroup": "rbac.authorization.k8s.io"}
    binding = rbac | {
        "kind": "RoleBinding",
        "roleRef": reference | {"kind": "Role", "name": "reader"},
        "subjects": [reference | {"kind": "Group", "name": "readers"}],
    }
    objects = [rbac | {"kind": "Role", "rules": [rule]}, binding]
    control_plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    async def allowed() -> bool:
        return await code("one") == 200

    await eventually(allowed)
    assert await code("two") == 403


async def test_who_shows_no_certificate_is_told_so_whatever_the_headers_say(direct: Direct) -> None:
    code, answer = await direct.get(None, "admin")
    assert (code, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized")


async def test_a_certificate_of_the_clusters_own_ca_does_not_get_through(
    control_plane: ControlPlane, direct: Direct
) -> None:
    with pytest.raises(aiohttp.ClientError):
        await direct.get(control_plane.ca.parent / "admin", "admin")


async def test_another_name_under_the_front_proxy_ca_may_not_speak_for_users(
    control_plane: ControlPlane, direct: Direct
) -> None:
    control_plane._front_proxy.issue("impostor")
    code, answer = await direct.get(control_plane.front_proxy_ca.parent / "impostor", "admin")
    assert (code, answer["message"]) == (401, "certificate of impostor may not speak for users")


async def test_a_change_of_the_front_proxy_ca_is_followed_without_a_restart(
    control_plane: ControlPlane, direct: Direct, api: ApiServer, tmp_path: Path
) -> None:
    new = _Authority(tmp_path / "new-ca", "new-front-proxy-ca")
    new.issue("front-proxy-client")
    where = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    before = (await api.request("GET", where))["data"]["requestheader-client-ca-file"]

    async def trust(pem: str) -> None:
        body = {"data": {"requestheader-client-ca-file": pem}}
        await api.request("PATCH", where, body=body, content_type="application/merge-patch+json")

    async def let_in() -> bool:
        try:
            return (await direct.get(new.directory / "front-proxy-client", "admin"))[0] == 200
        except aiohttp.ClientError:
            return False

    assert not await let_in()
    await trust(before + new.certificate_file.read_text())
    try:
        await eventually(let_in)
    finally:
        await trust(before)

    async def shut_out() -> bool:
        return not await let_in()

    await eventually(shut_out)
    assert (await direct.get(control_plane.front_proxy_ca.parent / "front-proxy-client", "admin"))[0] == 200


async def test_two_replicas_agree_within_one_scrape(
    control_plane: ControlPlane, installed: Installation, fleet: Fleet
) -> None:
    (port,) = _free_ports(1)
    second = installed.start(port=port)
    try:
        await second.ready()
        proxy = Client(Direct(installed).ca, control_plane.front_proxy_ca.parent / "front-proxy-client")
        fleet.demand = 3.0
        await asyncio.sleep(SCRAPE_SECONDS + 0.5)
        values = []
        for replica in (installed.replicas[0], second):
            url = f"https://127.0.0.1:{replica.port}{path(fleet.namespace, 'one')}"
            _, answer = await proxy.get(url, X_Remote_User="admin", X_Remote_Group="system:masters")
            values.append(answer["items"][0]["value"])
        assert values == ["1500m", "1500m"]
    finally:
        second.stop()


async def test_the_process_counts_its_scrapes_and_requests(installed: Installation, fleet: Fleet) -> None:
    replica = installed.replicas[0]
    assert (await replica.sample('cosyvoice_metrics_api_scrapes_total{outcome="ok"}') or 0) > 0
    assert (await replica.sample('cosyvoice_metrics_api_requests_total{code="200"}') or 0) > 0

    async def all_are_young() -> bool:  # once the pods of earlier tests are gone
        age = await replica.sample("cosyvoice_metrics_api_oldest_reading_seconds")
        return age is not None and 0 <= age < 2 * SCRAPE_SECONDS

    await eventually(all_are_young)
    assert await replica.sample("cosyvoice_metrics_api_registered") == 1
