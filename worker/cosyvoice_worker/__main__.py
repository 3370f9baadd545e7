"""`cosyvoice-worker [serve] [--flags]` serves; `cosyvoice-worker verify [--flags]` prints what it would serve with;
`cosyvoice-worker fetch-model [--flags]` brings a model from a hub."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from cosyvoice_worker import json_log
from cosyvoice_worker.settings import Settings, SettingsError, read_settings

_TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes shows what stands in it as the reason of the container's end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 served and drained, 1 could not, 2 wrong usage or settings."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "serve"
    if command not in ("serve", "verify", "fetch-model"):
        return _end(f"no such command: {command}; use serve, verify or fetch-model", 2)
    if command == "fetch-model":
        return _fetch(arguments)
    if command == "verify":
        from cosyvoice_worker.verify import print_versions

        print_versions()
    try:
        settings = read_settings(arguments)
    except SettingsError as error:
        return _end(str(error), 2)
    return _verify(settings) if command == "verify" else _serve(settings)


def _serve(settings: Settings) -> int:
    json_log.configure(settings.log_level)
    log = logging.getLogger("cosyvoice_worker")
    log.info("settings", extra={"settings": settings.model_dump(mode="json")})
    from cosyvoice_worker.server import serve  # brings torch: seconds, in which the log already says what starts
    from cosyvoice_worker.startup import load_engine

    try:
        asyncio.run(serve(settings, load_engine))
    except Exception as error:
        log.error("the worker ends", exc_info=error)
        return _end(str(error) or repr(error), 1)
    return 0


def _verify(settings: Settings) -> int:
    from cosyvoice_worker.verify import print_model

    try:
        print_model(settings)
    except Exception as error:
        return _end(str(error) or repr(error), 1)
    return 0


def _fetch(arguments: Sequence[str]) -> int:
    from pydantic import ValidationError

    from cosyvoice_worker.hubs.command import FetchSettings, run
    from cosyvoice_worker.hubs.snapshot import HubError

    json_log.configure("info")
    try:
        settings = FetchSettings(  # type: ignore[call-arg]
            _cli_parse_args=list(arguments), _cli_prog_name="cosyvoice-worker fetch-model"
        )
    except ValidationError as error:
        return _end("; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors(include_url=False)), 2)
    try:
        fetched = run(settings)
    except (HubError, OSError) as error:
        return _end(str(error), 1)
    _leave(json.dumps({"revision": fetched.revision, "bytes": fetched.bytes}))
    return 0


def _leave(message: str) -> None:
    """Where Kubernetes looks for a container's last words."""
    with contextlib.suppress(OSError):
        if _TERMINATION_LOG.exists():
            _TERMINATION_LOG.write_text(message[:4000])


def _end(reason: str, status: int) -> int:
    """The reason as the last thing on standard error, and where Kubernetes looks for it."""
    _leave(reason)
    print(f"cosyvoice-worker: {reason}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
