"""The GET routes of the Open Inference Protocol: health, and what the server and its model are."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse, Response

from service.api.oip_model import VERSION, find_model, metadata
from service.api.oip_schema import OIP_ERRORS, OipLive, OipModel, OipModelReady, OipReady, OipServer
from service.errors import MethodError, NotReadyError
from service.state import Service

_EXTENSIONS = ["binary_tensor_data"]
_UNREADY_RETRY_S = 2.0
_UNKNOWN: dict[int | str, dict[str, Any]] = {404: OIP_ERRORS[404], 503: OIP_ERRORS[503]}


def oip_router(service: Service, *, version: str, has_repository: bool) -> APIRouter:
    """Not ready is 503, as on `/health/ready`, where Triton answers 400: clients look for 200 alone, and only a 503
    says that it is worth asking again. version: of the server. has_repository: models are loaded at run time.
    """
    extensions = [*_EXTENSIONS, "model_repository"] if has_repository else _EXTENSIONS
    router = APIRouter(prefix="/v2", tags=["open inference protocol"])

    @router.head("/health/live", include_in_schema=False)
    @router.get("/health/live", summary="The process answers", response_model=OipLive)
    async def oip_live() -> Response:
        return JSONResponse({"live": True})

    @router.head("/health/ready", include_in_schema=False)
    @router.get(
        "/health/ready",
        summary="New work should be sent here",
        response_model=OipReady,
        responses={503: OIP_ERRORS[503]},
    )
    async def oip_ready() -> Response:
        service.check_ready()
        return JSONResponse({"ready": True, "live": True})

    @router.head("", include_in_schema=False)
    @router.get("", summary="The server", response_model=OipServer)
    async def oip_server() -> Response:
        return JSONResponse({"name": "qkv", "version": version, "extensions": extensions})

    _add_models(router, service)
    return router


def _add_models(router: APIRouter, service: Service) -> None:
    @router.head("/models/{model:path}/versions/{version}/ready", include_in_schema=False)
    @router.get(
        "/models/{model:path}/versions/{version}/ready",
        summary="One version of the model takes requests",
        response_model=OipModelReady,
        responses=_UNKNOWN,
    )
    async def oip_version_ready(model: str, version: str) -> Response:
        return _ready(service, model, version)

    @router.head("/models/{model:path}/ready", include_in_schema=False)
    @router.get(
        "/models/{model:path}/ready",
        summary="The model takes requests",
        response_model=OipModelReady,
        responses=_UNKNOWN,
    )
    async def oip_model_ready(model: str) -> Response:
        return _ready(service, model, VERSION)

    @router.head("/models/{model:path}/versions/{version}", include_in_schema=False)
    @router.get(
        "/models/{model:path}/versions/{version}",
        summary="One version of the model: its tensors",
        response_model=OipModel,
        responses=_UNKNOWN,
    )
    async def oip_version(model: str, version: str) -> Response:
        return _metadata(service, model, version)

    @router.head("/models/{model:path}", include_in_schema=False)
    @router.get("/models/{model:path}", summary="The model: its tensors", response_model=OipModel, responses=_UNKNOWN)
    async def oip_model(model: str) -> Response:
        return _metadata(service, model, VERSION)


def _check_path(service: Service, model: str) -> None:
    """A name may have slashes, so that a route takes paths that are no model's, as `/stats` and `/config` behind one.

    Raises HTTPException where what comes before a slash is a model's name, and the whole is none.
    """
    if service.models.get(model) is not None or model == service.models.expected:
        return
    parts = model.split("/")
    if any(service.models.get("/".join(parts[:end])) is not None for end in range(1, len(parts))):
        raise HTTPException(404)


def _ready(service: Service, model: str, version: str) -> Response:
    service.admit()
    _check_path(service, model)
    engine = find_model(service, model, version)
    if (reason := engine.health().reason) is not None:
        raise NotReadyError(reason, retry_after_s=_UNREADY_RETRY_S)
    return JSONResponse({"name": engine.manifest.name, "ready": True})


def _metadata(service: Service, model: str, version: str) -> Response:
    # As above: this route's pattern takes what is another one's too.
    if model.endswith("/infer") or version == "infer":
        raise MethodError("this path takes POST", allow="POST")
    service.admit()
    _check_path(service, model)
    return JSONResponse(metadata(find_model(service, model, version)))
