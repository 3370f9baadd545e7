"""The CRD may come after the operator and go before it."""

from __future__ import annotations

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.controlplane.operator_harness import Namespace, OperatorProcess, eventually, service

pytestmark = pytest.mark.controlplane

CRD = "crd/cosyvoiceservices.tts.cosyvoice.io"


def test_a_crd_that_goes_hangs_nothing_and_one_that_comes_later_is_served(
    installed: ControlPlane, namespace: str
) -> None:
    home = Namespace(installed, namespace)
    operator = OperatorProcess(installed)
    operator.start()
    manifest = installed.run_kubectl("get", CRD, "--output=yaml")
    home.apply(service())
    home.converged("hello")
    installed.run_kubectl("delete", CRD, "--timeout=30s")
    try:
        eventually(lambda: children_are(home, 0))
        assert operator.wait(timeout=60) != 0, "deaf without its CRD, it is to be started again"
        operator.launch()
        with pytest.raises(AssertionError, match="waiting for the CRD"):
            operator.has_listed(timeout=4)
    finally:
        installed.run_kubectl("apply", "-f", "-", stdin=manifest)
        installed.run_kubectl("wait", "--for=condition=Established", CRD, "--timeout=30s")
    try:
        home.apply(service())
        operator.has_listed(timeout=60)
        home.converged("hello")
        eventually(lambda: children_are(home, 4))
    finally:
        operator.stop()


def children_are(home: Namespace, number: int) -> None:
    assert sum(len(home.list(kind)) for kind in ("deployment", "service", "hpa", "pdb")) == number
