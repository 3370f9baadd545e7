"""`cosyvoice-worker fetch-model`: what the operator runs, in a Job that fills a cache or before a worker starts."""

from __future__ import annotations

import http.server
import json
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from huggingface_hub.utils.tqdm import disable_progress_bars
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from cosyvoice_contract import ENV_FETCH_PREFIX, PATH_PROGRESS, FetchProgress
from cosyvoice_worker.hubs.download import Fetched, Progress, fetch
from cosyvoice_worker.hubs.snapshot import HubError, Snapshot

LOG_SECONDS = 10.0

log = logging.getLogger(__name__)


class FetchSettings(BaseSettings):
    """`COSYVOICE_FETCH_<FIELD>`. The token is no field: the hub's library reads $HF_TOKEN itself."""

    model_config = SettingsConfigDict(env_prefix=ENV_FETCH_PREFIX, frozen=True, extra="ignore", cli_kebab_case=True)

    hub: Literal["HuggingFace", "ModelScope"] = Field(description="where the model is")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name")
    revision: str = Field(min_length=1, description="branch, tag or commit")
    target: Path = Field(description="directory that is made; its parent exists")
    port: int = Field(-1, ge=-1, le=65535, description="serves GET /progress; 0: any free one; -1: none")


def run(settings: FetchSettings) -> Fetched:
    """Raises HubError and OSError with a reason for a person."""
    disable_progress_bars()
    progress = Progress()
    resolver: Callable[[str, str], Snapshot]
    if settings.hub == "HuggingFace":
        from cosyvoice_worker.hubs.huggingface import snapshot as resolver
    else:
        from cosyvoice_worker.hubs.modelscope import snapshot as resolver
    ended = threading.Event()
    threading.Thread(target=_tell, args=(progress, ended), daemon=True).start()
    server = _serve(settings.port, progress) if settings.port >= 0 else None
    try:
        fetched = fetch(
            settings.target, settings.revision, lambda revision: resolver(settings.repo, revision), progress
        )
    except (HubError, OSError):
        raise
    except Exception as error:  # whatever the client libraries raise of a connection
        # A redirect leads to an address that is signed: whoever has it may download.
        told = re.sub(r"\?\S*", "", str(error))
        raise HubError(f"the download of {settings.repo} broke off: {type(error).__name__}: {told}") from error
    finally:
        ended.set()
        if server is not None:
            server.shutdown()
            server.server_close()
    log.info("fetched", extra={"repo": settings.repo, "revision": fetched.revision, "bytes": fetched.bytes})
    return fetched


def _tell(progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(LOG_SECONDS):
        log.info("fetching", extra=dict(_report(progress)))


def _report(progress: Progress) -> FetchProgress:
    return {"revision": progress.revision, "done_bytes": progress.done, "total_bytes": progress.total}


def _serve(port: int, progress: Progress) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            body = json.dumps(_report(progress)).encode() if self.path == PATH_PROGRESS else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody needs to know who asked."""

    server = http.server.ThreadingHTTPServer(("", port), Handler)
    log.info("progress is served", extra={"port": server.server_address[1]})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
