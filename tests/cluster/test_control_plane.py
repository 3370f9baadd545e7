"""The control plane that other tests build upon does what they rely on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.controlplane


def test_controllers_and_scheduler_work(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.run_kubectl("-n", namespace, "create", "deployment", "web", "--image=none")
    # No node exists, so the scheduler's verdict on the pod that the controllers made is that none fits.
    verdict = "jsonpath={.items[*].status.conditions[?(@.type=='PodScheduled')].reason}"
    deadline = time.monotonic() + 20
    while control_plane.run_kubectl("-n", namespace, "get", "pods", "-o", verdict) != "Unschedulable":
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_objects_survive_a_restart_of_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.run_kubectl("-n", namespace, "create", "configmap", "kept", "--from-literal=a=b")
    control_plane.restart_apiserver()
    assert "kept" in control_plane.run_kubectl("-n", namespace, "get", "configmaps", "-o", "name")


def test_audit_log_tells_who_asked_for_what(control_plane: ControlPlane, namespace: str) -> None:
    before = len(control_plane.audit_events(user="admin"))
    control_plane.run_kubectl("-n", namespace, "create", "configmap", "counted")
    written = [
        (event["verb"], event["objectRef"]["name"])
        for event in control_plane.audit_events(user="admin")[before:]
        if event["verb"] == "create"
    ]
    assert written == [("create", "counted")]


def test_users_have_only_the_rights_that_rbac_gives_them(control_plane: ControlPlane) -> None:
    kubeconfig = control_plane.kubeconfig_for("nobody")
    done = subprocess.run(
        [control_plane.kubectl, "--kubeconfig", kubeconfig, "get", "pods"], capture_output=True, text=True, check=False
    )
    assert 'User "nobody" cannot list resource "pods"' in done.stderr


def test_no_process_outlives_a_killed_test_run(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from tests.cluster.control_plane import control_plane\n"
        "with control_plane(pathlib.Path(sys.argv[1])):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    assert _processes_with(str(tmp_path))
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    deadline = time.monotonic() + 10
    while _processes_with(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _processes_with(str(tmp_path)) == []


def _processes_with(argument: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if argument in words and "kube" in words:
            found.append(words)
    return found
