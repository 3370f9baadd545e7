"""Fixtures of the control-plane tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.operator_harness import OperatorProcess, install


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """A control plane with the CRD and the rights of the chart."""
    binaries.build(["helm"])
    install(control_plane)
    return control_plane


@pytest.fixture(scope="module")
def operator(installed: ControlPlane) -> Iterator[OperatorProcess]:
    """A running operator with no more rights than the chart gives it; a test may stop and start it."""
    process = OperatorProcess(installed)
    process.start()
    yield process
    process.stop()
