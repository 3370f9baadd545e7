"""Hugging Face's hub, or a mirror that $HF_ENDPOINT names; the token is $HF_TOKEN."""

from __future__ import annotations

from huggingface_hub import HfApi, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from cosyvoice_worker.hubs.snapshot import HubError, HubFile, Snapshot, used


def snapshot(repo: str, revision: str) -> Snapshot:
    """Raises HubError for what only a person can mend or the hub refuses, OSError and others for a bad connection."""
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except GatedRepoError:
        raise HubError(
            f"{repo} is gated: accept its terms on the hub and give a token of that account in tokenSecretRef"
        ) from None
    except RevisionNotFoundError:
        raise HubError(f"{repo} has no revision {revision!r}; name a branch, a tag or a commit of it") from None
    except RepositoryNotFoundError:
        have = "the token does not open it" if get_token() else "no token was given"
        raise HubError(f"there is no model {repo} on the hub, or it is private and {have}") from None
    except HFValidationError as error:
        raise HubError(str(error)) from None
    except HfHubHTTPError as error:
        raise HubError(f"the hub answers {error.response.status_code} for {repo}; trying again may help") from None
    if not info.sha:
        raise HubError(f"the hub does not say which commit {revision!r} of {repo} is")
    files = tuple(
        HubFile(
            path=sibling.rfilename,
            size=sibling.size or 0,
            url=hf_hub_url(repo, sibling.rfilename, revision=info.sha),
            sha256=sibling.lfs.sha256 if sibling.lfs is not None else "",
            git_sha1="" if sibling.lfs is not None else sibling.blob_id or "",
        )
        for sibling in info.siblings or ()
        if used(sibling.rfilename)
    )
    token = get_token()
    return Snapshot(info.sha, files, {"authorization": f"Bearer {token}"} if token else {})
