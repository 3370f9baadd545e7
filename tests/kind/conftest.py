"""The demo's own steps on a cluster of the tests' own, which goes when they end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack import demo
from tests.cluster import kind
from tests.cluster.kind import Cluster

CLUSTER = "cosyvoice-test"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A kind cluster with the chart installed and the quickstart's service ready."""
    try:
        made = demo.make_cluster(CLUSTER)  # quick: tests/conftest.py has built everything before the first test
        demo.install(made)
        demo.apply_quickstart(made)
        yield made
    finally:
        kind.down(CLUSTER)
