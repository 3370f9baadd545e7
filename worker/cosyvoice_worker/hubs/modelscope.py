"""ModelScope's hub, or a mirror that $MODELSCOPE_ENDPOINT names: public models, by its HTTP API."""

from __future__ import annotations

import os
import re
from typing import Any, Final
from urllib.parse import quote, urlencode

from huggingface_hub import get_session

from cosyvoice_worker.hubs.snapshot import HubError, HubFile, Snapshot, used

_ENDPOINT: Final = "https://www.modelscope.cn"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def snapshot(repo: str, revision: str) -> Snapshot:
    """Raises HubError."""
    listing = _listing(repo, revision)
    commit = _commit(repo, revision, listing)
    blobs = [item for item in listing["Files"] if item["Type"] != "tree" and used(item["Path"])]
    files = tuple(
        HubFile(
            path=item["Path"],
            size=item["Size"],
            url=f"{_root(repo)}/repo?{urlencode({'Revision': commit, 'FilePath': item['Path']})}",
            sha256=item.get("Sha256", ""),
        )
        for item in blobs
    )
    return Snapshot(commit, files)


def _root(repo: str) -> str:
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "").rstrip("/") or _ENDPOINT
    return f"{endpoint}/api/v1/models/{quote(repo)}"


def _listing(repo: str, revision: str) -> dict[str, Any]:
    query = urlencode({"Revision": revision, "Recursive": "true"})
    answer = get_session().get(f"{_root(repo)}/repo/files?{query}", timeout=60, follow_redirects=True)
    if answer.status_code in (401, 403, 404):
        raise HubError(
            f"ModelScope has no public model {repo} with a revision {revision!r}; name both as it shows them"
        )
    if answer.status_code != 200:
        raise HubError(f"ModelScope answers {answer.status_code} for {repo}; trying again may help")
    body = answer.json()
    listing = body.get("Data")
    if not body.get("Success", True) or not isinstance(listing, dict) or not listing.get("Files"):
        raise HubError(f"ModelScope lists no files of {repo} at {revision!r}: {body.get('Message', '')}")
    return listing


def _commit(repo: str, revision: str, listing: dict[str, Any]) -> str:
    """The newest commit, of which the listing has the short form, and the full one at each file that it changed."""
    if _COMMIT.fullmatch(revision):
        return revision
    short = (listing.get("LatestCommitter") or {}).get("ShortId", "")
    found = {
        item["Revision"]
        for item in listing["Files"]
        if short and _COMMIT.fullmatch(item.get("Revision", "")) and item["Revision"].startswith(short)
    }
    if len(found) != 1:
        raise HubError(f"ModelScope does not say which commit {revision!r} of {repo} is; give a commit as the revision")
    return str(found.pop())
