"""Health, metrics, models and the documentation: every route that is not hot, through FastAPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse

from service import metrics
from service.api import models
from service.api.schema import ERRORS, Health, ModelDetail, ModelList
from service.engine.engine import Engine
from service.state import Service

UI = Path(__file__).parent.parent / "ui"


def ops_router(service: Service) -> APIRouter:
    """Probes, for an orchestrator: none of them waits for the model."""
    router = APIRouter(tags=["operation"])

    @router.head("/health/live", include_in_schema=False)
    @router.get("/health/live", summary="The process answers", response_class=JSONResponse)
    async def live() -> Response:
        return JSONResponse({"status": "live"})

    @router.head("/health/ready", include_in_schema=False)
    @router.get("/health/ready", summary="New work should be sent here", responses={503: ERRORS[503]})
    async def ready() -> Response:
        service.check_ready()
        return JSONResponse({"status": "ready"})

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="What the service is doing", response_model=Health)
    async def health() -> Response:
        return _json(orjson.dumps(_health(service)))

    @router.head("/metrics", include_in_schema=False)
    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def scrape() -> Response:
        return Response(service.metrics.render(), media_type=metrics.CONTENT_TYPE)

    return router


def models_router(service: Service) -> APIRouter:
    """What is served."""
    router = APIRouter(tags=["models"])

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models", summary="The models loaded", response_model=ModelList, responses={503: ERRORS[503]})
    async def model_list() -> Response:
        service.admit()
        return _json(models.model_list(service.models))

    @router.head("/v1/models/{model_id:path}", include_in_schema=False)
    @router.get(
        "/v1/models/{model_id:path}",
        summary="One model, with its manifest and parity report",
        response_model=ModelDetail,
        responses={404: ERRORS[404], 503: ERRORS[503]},
    )
    async def model_detail(model_id: str) -> Response:
        service.admit()
        return _json(models.model_detail(service.models.choose(model_id).engine))

    return router


def docs_router() -> APIRouter:
    """The documentation page: local files only, so that it works without a network."""
    router = APIRouter(include_in_schema=False)

    @router.api_route("/docs", methods=["GET", "HEAD"])
    async def docs() -> Response:
        return FileResponse(UI / "docs.html")

    @router.api_route("/", methods=["GET", "HEAD"])
    async def root() -> Response:
        return RedirectResponse("/docs")

    @router.api_route("/favicon.ico", methods=["GET", "HEAD"])
    async def favicon() -> Response:
        return FileResponse(UI / "swagger" / "favicon-32x32.png")

    @router.api_route("/openapi.json", methods=["GET", "HEAD"])
    async def openapi(request: Request) -> Response:
        return _json(orjson.dumps(request.app.openapi()))

    return router


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _health(service: Service) -> dict[str, Any]:
    reason = service.unready_reason()
    return {
        "status": "ready" if reason is None else "unready",
        "reason": reason,
        "requests_in_flight": service.num_in_flight,
        "models": [_model_health(engine) for engine in service.models],
    }


def _model_health(engine: Engine) -> dict[str, Any]:
    found = engine.health()
    return {
        "id": engine.manifest.name,
        "status": "ready" if found.is_ready else "unready",
        "reason": found.reason,
        "provider": engine.runner_info().provider,
        "queued_tokens": found.queued_tokens,
        "running_calls": found.running_calls,
        "last_call_age_s": None if found.last_call_age_s is None else round(found.last_call_age_s, 3),
    }
