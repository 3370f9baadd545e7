"""`python -m cosyvoice_operator.metricsapi`: serves custom.metrics.k8s.io for the pools of every CosyVoiceService."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.metricsapi.process import Process
from cosyvoice_operator.metricsapi.settings import Settings, parse


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM. Exit codes: 0 stopped, 1 a part failed for good, 2 wrong command line."""
    settings = parse(arguments)
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    async with await ApiServer.connect(settings.kubeconfig) as api:
        await Process(settings, api).run()


if __name__ == "__main__":
    main()
