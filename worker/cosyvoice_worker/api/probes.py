"""What the kubelet, the metrics API and Prometheus ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from cosyvoice_contract import PATH_LIVE, PATH_LOAD, PATH_METRICS, PATH_READY
from cosyvoice_worker.api import metrics

if TYPE_CHECKING:
    from cosyvoice_worker.lifecycle import Worker

router = APIRouter(include_in_schema=False)


@router.get(PATH_LIVE)
async def live(request: Request) -> JSONResponse:
    """503 means: restart this process."""
    worker: Worker = request.app.state.worker
    return JSONResponse({"phase": worker.phase}, 200 if worker.alive else 503)


@router.get(PATH_READY)
async def ready(request: Request) -> JSONResponse:
    """503 means: send no requests here; the phase says why."""
    worker: Worker = request.app.state.worker
    return JSONResponse({"phase": worker.phase}, 200 if worker.ready else 503)


@router.get(PATH_LOAD)
async def load(request: Request) -> Response:
    """`contract.LoadReport`; 503 with no body before the model is loaded: no reading is not a reading of zero."""
    worker: Worker = request.app.state.worker
    report = worker.load_report()
    return Response(status_code=503) if report is None else JSONResponse(report)


@router.get(PATH_METRICS)
async def prometheus(request: Request) -> Response:
    return Response(request.app.state.metrics.expose(), media_type=metrics.CONTENT_TYPE)
