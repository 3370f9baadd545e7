"""Which model is served here, in the shapes that clients read."""

from __future__ import annotations

from fastapi import APIRouter, Request

from cosyvoice_worker.api.errors import model_not_found
from cosyvoice_worker.lifecycle import Worker

router = APIRouter()


def _model(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.settings.served_name,
        "object": "model",
        "created": int(worker.started_at),
        "owned_by": "cosyvoice",
    }


@router.get("/v1/models", summary="The model that is served")
async def models(request: Request) -> dict[str, object]:
    return {"object": "list", "data": [_model(request.app.state.worker)]}


@router.get("/v1/models/{name:path}", summary="One model")
async def model(name: str, request: Request) -> dict[str, object]:
    worker: Worker = request.app.state.worker
    served = worker.settings.served_name
    if name.strip().casefold() != served.casefold():
        raise model_not_found(name, served)
    return _model(worker)


@router.get("/v1/audio/models", summary="The model that is served, as Open WebUI asks for it")
async def audio_models(request: Request) -> dict[str, object]:
    worker: Worker = request.app.state.worker
    return {"models": [{"id": worker.settings.served_name, "name": worker.settings.served_name}]}
