"""The manifests and cluster commands of README and docs, on a real API server."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from tests import documents
from tests.cluster.binaries import BIN
from tests.cluster.control_plane import ControlPlane
from tests.documents import ROOT, Block, Command

pytestmark = pytest.mark.controlplane

OURS = "tts.cosyvoice.io/"
RUN_BY_THE_KIND_TESTS = ("kubectl wait",)
"""They need workers that become ready: `apply_quickstart` in hack/demo.py runs the same command."""


def _is_manifest(block: Block) -> bool:
    documents_in_it = [document for document in yaml.safe_load_all(block.text) if isinstance(document, dict)]
    return any("apiVersion" in document for document in documents_in_it)


MANIFESTS = [block for block in documents.blocks("yaml") if _is_manifest(block)]


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda block: block.where)
def test_every_manifest_is_accepted(block: Block, installed: ControlPlane, namespace: str) -> None:
    ours = [document for document in yaml.safe_load_all(block.text) if document["apiVersion"].startswith(OURS)]
    assert ours, "a manifest of somebody else's kind needs a test of its own"
    installed.run_kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(ours))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_accepted(path: Any, installed: ControlPlane, namespace: str) -> None:
    ours = [document for document in yaml.safe_load_all(path.read_text()) if document["apiVersion"].startswith(OURS)]
    installed.run_kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(ours))


@pytest.mark.parametrize("command", documents.commands("helm"), ids=lambda command: command.where)
def test_every_helm_command_renders_what_the_api_server_takes(command: Command, installed: ControlPlane) -> None:
    words = command.words
    assert words[1] in {"install", "upgrade"}, "another command needs a test of its own"
    options = [word for word in words[2:] if word not in {"--create-namespace", "--install", "--wait"}]
    rendered = subprocess.run(
        [BIN / "helm", "template", *options, "--kube-version=1.34.0"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert rendered.returncode == 0, rendered.stderr
    installed.run_kubectl("apply", "--dry-run=server", "-f", "-", stdin=rendered.stdout)


@pytest.mark.parametrize("command", documents.commands("kubectl"), ids=lambda command: command.where)
def test_every_kubectl_command_works(command: Command, installed: ControlPlane, namespace: str) -> None:
    words = command.words
    if command.line.startswith(RUN_BY_THE_KIND_TESTS):
        return
    assert words[1] in {"apply", "create"}, "another command needs a test of its own"
    installed.run_kubectl(*words[1:], "--dry-run=server", "-n", namespace)
