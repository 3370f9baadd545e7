"""Fixtures that any test may ask for."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.control_plane import control_plane as run_control_plane


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build programs and images that the tests need and that are missing, outside of any test's time limit."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        if "control_plane" in wanted:
            binaries.build((*binaries.CONTROL_PLANE, "helm"))  # helm: tests install what the chart renders
        if "cluster" in wanted:
            from hack import demo  # the OpenAI client takes a second to import: only where it is needed

            demo.prepare()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running Kubernetes control plane, one for each process of the test run."""
    with run_control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own; its deletion is asked for at the end and not waited for."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.run_kubectl("create", "namespace", name)
    yield name
    control_plane.run_kubectl("delete", "namespace", name, "--wait=false", check=False)
