"""Calls this process as kube-apiserver will: through its own Service, and trusting its own CA."""

from __future__ import annotations

import ssl

import aiohttp

from cosyvoice_operator.metricsapi.wire import GROUP

REACH_SECONDS = 5


class Unreachable(Exception):
    """Nobody answers behind the own Service, or somebody else does."""


async def reach(url: str, server_name: str, ca_bundle: bytes) -> None:
    """Return when an answer comes from `url` under a certificate for `server_name` that `ca_bundle` (PEM) signed.

    Of whatever status: this process refuses itself, as it is not kube-apiserver. Raises Unreachable.
    """
    context = ssl.create_default_context(cadata=ca_bundle.decode())
    timeout = aiohttp.ClientTimeout(total=REACH_SECONDS)
    try:
        # No proxy: what is asked is whether the cluster's own network leads here.
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.get(f"{url}/apis/{GROUP}", ssl=context, server_hostname=server_name, allow_redirects=False),
        ):
            return
    except (aiohttp.ClientError, TimeoutError) as error:
        why = str(error) or f"no answer within {REACH_SECONDS} s"
        raise Unreachable(
            f"the API is not registered, because its own Service does not lead to it ({url}: {why}); "
            "see docs/metrics-api.md, Networks"
        ) from error
