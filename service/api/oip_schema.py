"""The shapes of the Open Inference Protocol (version 2): the request's is checked, the others are documented."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import ErrorDetails

from service.api.body import Body, describe
from service.errors import RequestError

BINARY = "application/octet-stream"
# Clients of this protocol send no content type at all, or that of bytes.
MEDIA_TYPES = (b"", BINARY.encode())

_WORDS = {
    "id": "a string",
    "name": "a string",
    "datatype": "a string",
    "parameters": "an object",
    "inputs": "a list of tensors",
    "inputs[]": "an object",
    "outputs": "a list of objects with `name`",
    "outputs[]": "an object",
    "shape": "a list of integers from 0",
    "shape[]": "an integer from 0",
    "ready": "true or false",
}
_BINARY = "`binary_data_size`: its bytes follow the JSON, and `data` is left out."


class InferTensor(Body):
    """One input."""

    model_config = ConfigDict(extra="ignore")

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str = Field(description="BOOL, INT32, INT64, FP16, FP32 or BYTES, as the model's metadata say.")
    parameters: dict[str, Any] | None = Field(None, description=_BINARY)
    data: Any = Field(None, description="Row-major, nested as `shape` or flat; strings for BYTES. FP16 is binary only.")


class InferOutput(Body):
    """One output that is wanted."""

    model_config = ConfigDict(extra="ignore")

    name: str
    parameters: dict[str, Any] | None = Field(None, description="`binary_data`: as bytes behind the JSON.")


class InferBody(Body):
    """What `infer` takes; unknown fields and parameters are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "example": {
                "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["The river bank was muddy."]}]
            }
        },
    )

    inputs: Annotated[list[InferTensor], MinLen(1)]
    outputs: list[InferOutput] | None = Field(None, description="Default: all of the model's.")
    id: str | None = Field(None, description="Comes back in the answer.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data_output`: outputs that do not say otherwise come as bytes behind the JSON."
    )


def refuse(fault: ErrorDetails, model: type[Body]) -> RequestError:
    """What is wrong with one field of a body, by its full name."""
    name, kind = "", ""
    for step in fault["loc"]:
        kind = f"{kind}[]" if isinstance(step, int) else step
        name += f"[{step}]" if isinstance(step, int) else f".{step}"
    name = name.removeprefix(".")
    if fault["type"] == "missing":
        return RequestError(f"{name}: this field is required", param=name, code="missing_field")
    return RequestError(f"{name}: {_WORDS[kind]} is expected, got {describe(fault['input'])}", param=name)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OipError(_Answer):
    """Every error under `/v2`."""

    error: str


class OipLive(_Answer):
    live: bool


class OipReady(_Answer):
    ready: bool
    live: bool


class OipServer(_Answer):
    name: str
    version: str
    extensions: list[str]


class OipTensor(_Answer):
    name: str
    datatype: Literal["BOOL", "INT32", "INT64", "FP16", "FP32", "BYTES"]
    shape: list[int] = Field(description="-1 = any size.")


class OipModel(_Answer):
    name: str
    versions: list[str]
    platform: str
    inputs: list[OipTensor]
    outputs: list[OipTensor]


class OipModelReady(_Answer):
    name: str
    ready: bool


class OipEntry(_Answer):
    """A model of the repository."""

    name: str = Field(description="Of the model, or of its folder where several bundles are of one model.")
    version: str
    state: Literal["READY", "LOADING", "UNAVAILABLE"]
    reason: str


class OipOutput(OipTensor):
    parameters: dict[str, int] | None = Field(None, description=_BINARY)
    data: list[Any] | None = Field(None, description="Flat, row-major.")


class OipAnswer(_Answer):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OipOutput]


_MEANINGS = {
    400: "The request can never succeed as it is",
    404: "No such model or version",
    412: "The index was built in another vector space",
    413: "More body bytes than allowed",
    415: "Neither JSON nor binary tensors, or compressed",
    429: "The queue is full: see Retry-After",
    500: "The model failed on this input",
    503: "Loading or shutting down: see Retry-After",
    504: "The request took longer than allowed",
}
OIP_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OipError, "description": text} for status, text in _MEANINGS.items()
}
_OF_ADMINS = (400, 404, 413, 415, 500, 503, 504)
OIP_ADMIN_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": OipError, "description": "Without the admin key"},
    **{status: OIP_ERRORS[status] for status in _OF_ADMINS},
}
