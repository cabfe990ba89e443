"""The app: routes, their documentation, and the life of the models behind them.

Models are loaded in a thread of their own, so that the process answers its liveness probe from the first moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from service.admin import AdminKey
from service.api.body import SAFETENSORS, Body
from service.api.classify import ClassifyBody, classify
from service.api.encode import EncodeBody, encode
from service.api.oip import HEADER, infer
from service.api.oip_repository import IndexBody, LoadBody, RepositoryApi
from service.api.oip_routes import oip_router
from service.api.oip_schema import BINARY, OIP_ADMIN_ERRORS, OIP_ERRORS, InferBody, OipAnswer, OipEntry
from service.api.openai import EmbeddingsBody, embeddings
from service.api.ops import UI, docs_router, models_router, ops_router
from service.api.rerank import RerankBody, rerank
from service.api.schema import (
    ERRORS,
    ClassifyAnswer,
    EmbeddingsAnswer,
    EncodeAnswer,
    RerankAnswer,
    TensorsAnswer,
)
from service.api.tokenize import TokenizeBody, tokenize
from service.bundle import Bundle
from service.engine.engine import Engine
from service.errors import StartupError
from service.loader import Loader, Prepare
from service.manifest import Manifest
from service.middleware import Endpoint, Front
from service.repository import Repository
from service.settings import Settings
from service.state import Service

API_VERSION = "1"

_SPACE = "Embedding-Space"
_ADMIN = "admin"
_REF = "#/components/schemas/{model}"

_log = logging.getLogger(__name__)

Open = Callable[[Bundle[Manifest], Service], Engine]


@dataclass(frozen=True, slots=True)
class HotRoute:
    """A POST route that `Front` answers itself, and how it is documented.

    media_types: of answers that are not JSON; when: on which condition they come; takes_binary: requests may have them
    too. name: of the operation, where the end of its path does not tell. needs_key: the admin's.
    """

    endpoint: Endpoint
    body: type[Body]
    answer: Any
    summary: str
    media_types: tuple[str, ...] = ()
    when: str = "for who sends it as `Accept`"
    takes_binary: bool = False
    has_vectors: bool = True
    errors: Mapping[int | str, dict[str, Any]] = field(default_factory=lambda: ERRORS)
    tag: str = "inference"
    name: str = ""
    needs_key: bool = False


def _oip(summary: str, *, name: str) -> HotRoute:
    return HotRoute(
        infer,
        InferBody,
        OipAnswer,
        summary,
        (BINARY,),
        when=f"with binary tensors behind it, when those are asked for; the header `{HEADER}` is its length then",
        takes_binary=True,
        errors=OIP_ERRORS,
        tag="open inference protocol",
        name=name,
    )


HOT_ROUTES: dict[str, HotRoute] = {
    "/v1/encode": HotRoute(
        encode,
        EncodeBody,
        EncodeAnswer | TensorsAnswer,
        "Embeddings, classes, entities, tokens, outputs and attention weights, of text or of tensors",
        (SAFETENSORS,),
    ),
    "/v1/embeddings": HotRoute(embeddings, EmbeddingsBody, EmbeddingsAnswer, "Embeddings, as OpenAI's clients ask"),
    "/v1/tokenize": HotRoute(
        tokenize, TokenizeBody, EncodeAnswer, "The tokens that the model would get", has_vectors=False
    ),
    "/v1/classify": HotRoute(
        classify, ClassifyBody, ClassifyAnswer, "Classes of texts and of pairs, with their scores", has_vectors=False
    ),
    "/v1/rerank": HotRoute(
        rerank, RerankBody, RerankAnswer, "Documents by how well they answer a query", has_vectors=False
    ),
    # The first that fits answers: a name with slashes could have a version's path in it.
    "/v2/models/{model}/versions/{version}/infer": _oip("The same, of one version", name="infer_version"),
    "/v2/models/{model}/infer": _oip("Outputs of the model for tensors or texts", name="infer"),
}


def admin_routes(key: AdminKey, loader: Loader) -> dict[str, HotRoute]:
    """The routes that there are only where an admin key is set."""
    api = RepositoryApi(key, loader)

    def of_admin(endpoint: Endpoint, body: type[Body], answer: Any, summary: str) -> HotRoute:
        tag = "open inference protocol: repository"
        return HotRoute(
            endpoint, body, answer, summary, has_vectors=False, errors=OIP_ADMIN_ERRORS, tag=tag, needs_key=True
        )

    model = "/v2/repository/models/{model}"
    summary = "The models that are loaded, and those that could be"
    return {
        "/v2/repository/index": of_admin(api.index, IndexBody, list[OipEntry], summary),
        f"{model}/load": of_admin(api.load, LoadBody, OipEntry, "Load a bundle, or load it again"),
        f"{model}/unload": of_admin(api.unload, LoadBody, OipEntry, "Unload a model"),
    }


class App(FastAPI):
    """FastAPI with our front in place of its error layers: one place translates, whatever raised."""

    def __init__(self, service: Service, hot_routes: Mapping[str, HotRoute], **options: Any) -> None:
        super().__init__(**options)
        self.service = service
        self._hot_routes = hot_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # FastAPI's own entry looks for tracing options in the environment at every request; nothing here uses them.
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = AsyncExitStackMiddleware(self.router)
        for middleware in reversed(self.user_middleware):
            app = middleware.cls(app, *middleware.args, **middleware.kwargs)
        endpoints = {path: route.endpoint for path, route in self._hot_routes.items()}
        return Front(app, service=self.service, endpoints=endpoints)

    def openapi(self) -> dict[str, Any]:
        """The schema, with the request models of the routes that read their body themselves."""
        if self.openapi_schema is None:
            schema = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            bodies = [(route.body, "validation") for route in self._hot_routes.values()]
            _, found = models_json_schema(bodies, ref_template=_REF)  # type: ignore[arg-type]
            schema["components"]["schemas"].update(found["$defs"])
            if any(route.needs_key for route in self._hot_routes.values()):
                schema["components"]["securitySchemes"] = {_ADMIN: {"type": "http", "scheme": "bearer"}}
            _forget_validation_errors(schema)
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(
    settings: Settings, *prepare: Prepare, directories: Sequence[Path] = (), open_engine: Open | None = None
) -> App:
    """The app over the bundles that are prepared.

    prepare: each gives a verified bundle; called in the loader's thread, may take long, raises StartupError.
    directories: of bundles that may be loaded later, beside those of the settings.
    open_engine: what starts an engine; tests put a fake model in here.
    """
    service = Service(settings)
    start = open_engine or _open_engine
    repository = Repository((*directories, *settings.repository_dirs))
    loader = Loader(service.models, repository, lambda bundle: start(bundle, service))
    key = settings.read_admin_key()
    hot_routes = HOT_ROUTES if key is None else HOT_ROUTES | admin_routes(AdminKey(key), loader)
    app = App(
        service,
        hot_routes,
        title="qkv",
        version=API_VERSION,
        description="Attention encoders over HTTP: embeddings, classes, ranks, token outputs and attention weights.",
        lifespan=lambda _: _life(service, loader, prepare),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for path, route in hot_routes.items():
        _document(app, path, route)
    for router in (
        models_router(service),
        oip_router(service, version=API_VERSION, has_repository=key is not None),
        ops_router(service),
        docs_router(),
    ):
        app.include_router(router)
    app.mount("/docs/assets", StaticFiles(directory=UI))
    return app


def _open_engine(bundle: Bundle[Manifest], service: Service) -> Engine:
    return Engine.start(bundle, service.settings, host=service.host_of(bundle.manifest.name))


@contextlib.asynccontextmanager
async def _life(service: Service, loader: Loader, prepare: Sequence[Prepare]) -> AsyncIterator[None]:
    start = asyncio.get_running_loop().create_task(_start(service, loader, prepare))
    try:
        yield
    finally:
        start.cancel()
        loader.close()
        await service.models.close(service.settings.drain_timeout_s)


async def _start(service: Service, loader: Loader, prepare: Sequence[Prepare]) -> None:
    try:
        await loader.start(prepare)
    except StartupError as error:
        _log.error("cannot start: %s", error)
        service.failure = str(error)
    except Exception as error:
        _log.exception("cannot start")
        service.failure = type(error).__name__
    else:
        service.is_loading = False
        _log.info("ready")


def _forget_validation_errors(schema: dict[str, Any]) -> None:
    """Take out the 422 that FastAPI adds to every route with a parameter: ours never answer it."""
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)


def _document(app: FastAPI, path: str, route: HotRoute) -> None:
    async def documented() -> Response:
        raise AssertionError(f"{path} is answered by the front")

    body = {"$ref": _REF.format(model=route.body.__name__)}
    binary = {media: {"schema": {"type": "string", "format": "binary"}} for media in route.media_types}
    answered: dict[str, Any] = {"content": binary}
    content = {"application/json": {"schema": body}, **(binary if route.takes_binary else {})}
    parameters = [{"name": name, "in": "path", "required": True} for name in re.findall(r"{(\w+)}", path)]
    if route.has_vectors:
        answered["headers"] = {_SPACE: {"description": "The space of the vectors.", "schema": {"type": "string"}}}
        text = "The space of your index, as the field `embedding_space`: another one is refused by 412."
        parameters.append({"name": _SPACE, "in": "header", "description": text})
    # An administrator's bodies may be left out.
    extra: dict[str, Any] = {"requestBody": {"required": not route.needs_key, "content": content}}
    if route.needs_key:
        extra["security"] = [{_ADMIN: []}]
    if parameters:
        extra["parameters"] = [{**parameter, "schema": {"type": "string"}} for parameter in parameters]
    if binary:
        answered["description"] = f"JSON, or {' or '.join(binary)} {route.when}."
    app.add_api_route(
        path,
        documented,
        methods=["POST"],
        tags=[route.tag],
        summary=route.summary,
        description=inspect.getdoc(inspect.getmodule(route.endpoint)),
        response_model=route.answer,
        responses={200: answered, **route.errors},
        operation_id=route.name or path.rsplit("/", 1)[-1],
        openapi_extra=extra,
    )
