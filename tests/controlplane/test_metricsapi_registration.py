"""The APIServices: made where nobody else is, kept right, and gone with the release, lest a namespace hang on them."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.metricsapi.certificate import renewed, to_secret_data
from cosyvoice_operator.metricsapi.registration import PATH
from cosyvoice_operator.metricsapi.wire import GROUP, VERSIONS
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.metrics_harness import NAME, Installation, certificate_of, eventually, installation

pytestmark = pytest.mark.controlplane


@pytest.fixture
def installed(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Installation]:
    with installation(control_plane, namespace, tmp_path) as made:
        yield made


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    async with await ApiServer.connect(str(control_plane.kubeconfig)) as made:
        yield made


async def registered(api: ApiServer) -> dict[str, dict[str, Any]]:
    """The APIServices of the group, by version."""
    items = (await api.request("GET", PATH))["items"]
    return {item["spec"]["version"]: item for item in items if item["spec"].get("group") == GROUP}


async def gone(api: ApiServer) -> bool:
    return not await registered(api)


def available(item: dict[str, Any]) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Available" and condition["status"] == "True" for condition in conditions)


async def test_both_versions_are_registered_and_available(installed: Installation, api: ApiServer) -> None:
    await installed.serving()
    found = await registered(api)
    assert sorted(found) == sorted(VERSIONS)
    assert all(available(item) for item in found.values())


async def test_an_api_that_its_own_service_does_not_lead_to_is_never_registered(
    installed: Installation, api: ApiServer
) -> None:
    installed.apply()
    replica = installed.start("--own-address=127.0.0.1:1")
    await replica.ready()

    async def said() -> bool:
        return "its own Service does not lead to it (https://127.0.0.1:1" in replica.log.read_text()

    await eventually(said)
    await asyncio.sleep(3)
    assert await gone(api)
    assert await replica.sample("cosyvoice_metrics_api_registered") == 0
    replica.kill()
    await installed.start().ready()

    async def ours() -> bool:
        return sorted(await registered(api)) == sorted(VERSIONS)

    await eventually(ours)


async def test_no_namespace_hangs_after_an_uninstall_that_left_no_process(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    replica = await installed.serving()
    replica.kill()
    unrelated = f"unrelated-{uuid.uuid4().hex[:6]}"
    control_plane.run_kubectl("create", "namespace", unrelated)

    async def unavailable() -> bool:
        return not any(available(item) for item in (await registered(api)).values())

    async def deleted() -> bool:
        try:
            await api.request("GET", f"/api/v1/namespaces/{unrelated}")
        except ApiError as error:
            return error.code == 404
        return False

    await eventually(unavailable, seconds=60)
    control_plane.run_kubectl("delete", "namespace", unrelated, "--wait=false")
    # This is what the owner reference is for: as long as the dead API is registered, the namespace hangs.
    await asyncio.sleep(5)
    assert not await deleted()
    control_plane.run_kubectl("delete", "clusterrole", installed.cluster_role)
    await eventually(lambda: gone(api))
    await eventually(deleted, seconds=60)


async def test_a_running_process_does_not_register_again_while_its_release_goes(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    await installed.serving()
    control_plane.run_kubectl("delete", "clusterrole", installed.cluster_role)
    await eventually(lambda: gone(api))
    await asyncio.sleep(4)
    assert await gone(api)


async def test_the_deletion_of_its_own_deployment_withdraws_the_registration_at_once(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    await installed.serving()
    control_plane.run_kubectl("-n", installed.namespace, "delete", "deployment", NAME)
    await eventually(lambda: gone(api), seconds=5)


async def test_a_withdrawn_registration_is_made_again(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    await installed.serving()
    control_plane.run_kubectl("delete", "apiservice", f"v1beta2.{GROUP}")

    async def back() -> bool:
        return sorted(await registered(api)) == sorted(VERSIONS)

    await eventually(back, seconds=10)


FOREIGN = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": f"v1beta1.{GROUP}"},
    "spec": {
        "group": GROUP,
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"namespace": "monitoring", "name": "prometheus-adapter", "port": 443},
    },
}


async def test_a_group_that_somebody_else_serves_is_left_alone_until_they_go(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    control_plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump(FOREIGN))
    try:
        before = (await registered(api))["v1beta1"]
        installed.apply()
        replica = installed.start()
        await replica.ready()
        await asyncio.sleep(2)
        found = await registered(api)
        assert list(found) == ["v1beta1"]
        assert (found["v1beta1"]["metadata"]["uid"], found["v1beta1"]["spec"]) == (
            before["metadata"]["uid"],
            before["spec"],
        )
        assert "another server owns custom.metrics.k8s.io" in replica.log.read_text()
        assert (
            "v1beta1.custom.metrics.k8s.io is served by Service monitoring/prometheus-adapter"
            in replica.log.read_text()
        )
        assert await replica.sample("cosyvoice_metrics_api_registered") == 0
    finally:
        control_plane.run_kubectl("delete", "apiservice", f"v1beta1.{GROUP}")

    async def ours() -> bool:
        return sorted(await registered(api)) == sorted(VERSIONS)

    await eventually(ours, seconds=10)
    await eventually(lambda: _is(replica.sample("cosyvoice_metrics_api_registered"), 1.0))


async def test_a_certificate_is_renewed_without_a_restart_and_without_an_outage(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    replica = await installed.serving()
    first = certificate_of(replica.port)
    names = [f"{NAME}.{installed.namespace}.svc", f"{NAME}.{installed.namespace}.svc.cluster.local"]
    old = renewed(None, names, datetime.now(UTC) - timedelta(days=80))  # ten days left of ninety
    control_plane.run_kubectl(
        *("-n", installed.namespace, "patch", "secret", f"{NAME}-serving", "--type=merge"),
        *("-p", json.dumps({"data": to_secret_data(old)})),
    )

    async def other() -> bool:
        return certificate_of(replica.port) not in (first, old.serving.certificate.decode())

    async def answered() -> bool:
        try:
            await api.request("GET", f"/apis/{GROUP}/v1beta2")
        except ApiError:
            return False
        found = await registered(api)
        bundles = {base64.b64decode(item["spec"]["caBundle"]) for item in found.values()}
        return bundles == {old.ca.certificate}

    await eventually(other)
    await eventually(answered)
    assert replica.process.poll() is None
    data = json.loads(
        control_plane.run_kubectl("-n", installed.namespace, "get", "secret", f"{NAME}-serving", "-o", "json")
    )["data"]
    assert base64.b64decode(data["tls.crt"]).decode().strip() == certificate_of(replica.port).strip()
    assert base64.b64decode(data["ca.crt"]) == old.ca.certificate


async def test_a_missing_secret_is_named_in_the_log_and_the_process_recovers(
    control_plane: ControlPlane, installed: Installation, api: ApiServer
) -> None:
    installed.apply()
    control_plane.run_kubectl("-n", installed.namespace, "delete", "secret", f"{NAME}-serving")
    replica = installed.start()

    async def logged() -> bool:
        return f"Secret {installed.namespace}/{NAME}-serving is missing" in replica.log.read_text()

    await eventually(logged)
    assert (await replica.get("/readyz"))[0] == 503
    control_plane.run_kubectl("-n", installed.namespace, "create", "secret", "generic", f"{NAME}-serving")
    await replica.ready()


async def test_sigterm_ends_the_process_cleanly(installed: Installation, api: ApiServer) -> None:
    replica = await installed.serving()
    assert replica.stop() == 0
    assert sorted(await registered(api)) == sorted(VERSIONS)  # a rollout is no uninstall


async def _is(value: Any, expected: Any) -> bool:
    return bool(await value == expected)


async def test_the_right_to_register_reaches_no_other_name(
    control_plane: ControlPlane, installed: Installation
) -> None:
    def register(group: str) -> str:
        spec = {"group": group, "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100}
        apiservice = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{group}"},
            "spec": {**spec, "insecureSkipTLSVerify": True, "service": {"namespace": "default", "name": "x"}},
        }
        user = f"--as=system:serviceaccount:{installed.namespace}:{NAME}"
        return control_plane.run_kubectl(
            "create", "--dry-run=server", user, "-f", "-", stdin=yaml.safe_dump(apiservice), check=False
        )

    installed.apply()

    async def refused() -> bool:  # a new policy takes the API server a moment
        return "and nothing else" in register("metrics.k8s.io")

    await eventually(refused)
    assert "and nothing else" not in register("custom.metrics.k8s.io")
