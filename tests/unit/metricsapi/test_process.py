"""What the process makes of what it knows of the cluster."""

from __future__ import annotations

import asyncio

import pytest
from kubernetes.aio.client import Configuration

from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.mirror import Mirror
from cosyvoice_operator.metricsapi.aggregate import MetricUnavailable
from cosyvoice_operator.metricsapi.process import ClusterPools


async def test_when_the_api_server_is_silent_for_long_no_pool_is_known() -> None:
    async with ApiServer(Configuration(host="http://127.0.0.1:1")) as server:
        unheard = [Mirror(server, "/apis/apps/v1/deployments"), Mirror(server, "/api/v1/pods")]
        pools = ClusterPools(server, *unheard, dict, max_silence=0.2)
        assert pools.find("speech", "narrator-t4") is None
        await asyncio.sleep(0.25)
        with pytest.raises(MetricUnavailable, match="heard nothing from the API server"):
            pools.find("speech", "narrator-t4")
