"""Every setting of the service: how to serve, never what is served (that is the manifest's).

One frozen object, read once from the environment (prefix `QKV_`) and the command line, passed to `create_app`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import StartupError
from service.runners.cpus import MAX_DEFAULT_THREADS

PREFIX = "QKV_"
# Kubernetes injects these for a Service named qkv: QKV_PORT=tcp://…, QKV_SERVICE_HOST, QKV_PORT_8000_TCP_ADDR, …
_SERVICE_LINK = re.compile(r"QKV_(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP)\w*)$")

# Beyond any machine: a number that is larger was not meant, and no counter has to hold it.
_MOST_BYTES = 2**40
_MOST = 10**9

_KEY = re.compile(r"[!-~]{16,256}")
_SECRETS = ("admin_key",)

Truncate = Literal["error", "left", "right"]


class Settings(BaseSettings):
    """How to serve. Grouped by stage; every field is bounded and described."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    # where it listens
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free one and logs it.")
    keep_alive_s: float = Field(
        75.0, ge=1, le=3600, description="Seconds an idle connection stays open; above a load balancer's own timeout."
    )
    drain_delay_s: float = Field(
        0.0, ge=0, le=600, description="Seconds after SIGTERM during which new connections still get 503."
    )
    drain_timeout_s: float = Field(
        30.0, ge=1, le=3600, description="Longest wait after SIGTERM for requests in flight."
    )

    # what it takes
    max_body_bytes: int = Field(16 * 2**20, ge=1024, le=_MOST_BYTES, description="Largest request body, in bytes.")
    max_items: int = Field(2048, ge=1, le=_MOST, description="Most inputs in one request.")
    max_text_chars: int = Field(
        500_000, ge=1, le=_MOST, description="Most characters in one text, checked before tokenising."
    )
    max_response_bytes: int = Field(
        128 * 2**20,
        ge=1024,
        le=_MOST_BYTES,
        description="Largest answer, in bytes, estimated before anything is computed.",
    )
    truncate: Truncate = Field(
        "error", description="What happens to a text over the limit when a request does not say."
    )
    token_ids: Literal["framed", "verbatim"] = Field(
        "framed", description="`framed` refuses token ids without the tokenizer's special tokens; `verbatim` takes any."
    )
    special_tokens: Literal["special", "text"] = Field(
        "special",
        description="What `[SEP]` and the like are in a caller's text: `special`, as `transformers` reads them, or "
        "`text` like any other, so that only the model's template gives them.",
    )

    max_answers_bytes: int = Field(
        2**29,
        ge=1024,
        le=_MOST_BYTES,
        description="Most bytes of answers being made and sent, all requests together; above it 429.",
    )

    max_attention_bytes: int = Field(
        2**31,
        ge=1024,
        le=_MOST_BYTES,
        description="Most bytes that the attention weights of one call take while it is computed, all layers together.",
    )

    # how it queues
    max_queue_tokens: int = Field(
        1_000_000, ge=1, le=_MOST, description="Most tokens waiting or running; above it 429."
    )
    max_call_tokens: int | None = Field(
        None,
        ge=1,
        le=_MOST,
        description="Most padded tokens in one call of a model; by default 1024, of text on a CPU 256, in int8 192.",
    )
    request_timeout_s: float = Field(300.0, gt=0, le=86_400, description="Longest life of a request; then 504.")

    # where it runs
    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu", description="`cuda` refuses to start without a usable GPU; `auto` warns and says what runs."
    )
    device_id: int = Field(0, ge=0, le=1023, description="Which GPU, as the driver counts them.")
    gpu_memory_bytes: int = Field(
        0, ge=0, le=_MOST_BYTES, description="Most GPU memory that the model's arena may take, in bytes; 0 = no limit."
    )
    tf32: bool = Field(
        False, description="Let a GPU multiply float32 with 10 bits of mantissa: faster, and no longer float32."
    )
    num_threads: int = Field(
        0,
        ge=0,
        le=256,
        description=f"CPU threads for the model; 0 = as cgroup and affinity allow, at most {MAX_DEFAULT_THREADS}.",
    )
    canary_interval_s: float = Field(
        10.0, gt=0, le=3600, description="Seconds without a call after which readiness is proved by a probe."
    )
    stuck_after_s: float = Field(
        30.0, ge=1, le=3600, description="Seconds in one call of the model after which the server is not ready."
    )

    # who may change what is loaded, and from where
    admin_key: SecretStr | None = Field(
        None,
        json_schema_extra={"allowed": "16 to 256 visible ASCII characters"},
        description="Who sends it may load and unload models; without a key there are no such routes.",
    )
    admin_key_file: Path | None = Field(
        None, json_schema_extra={"allowed": "a file"}, description="The file that holds the admin key, in its place."
    )
    repository: str = Field(
        "",
        json_schema_extra={"allowed": f"directories, `{os.pathsep}` between them"},
        description="Where bundles may be loaded from later, beside the directories that are served.",
    )

    # what it tells
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level logged.")
    log_format: Literal["text", "json"] = Field("text", description="One line a record: for people, or for machines.")

    @field_validator("admin_key", mode="before")
    @classmethod
    def _check_key(cls, value: Any) -> Any:
        return _checked_key(value) if value else None

    @field_validator("admin_key_file")
    @classmethod
    def _check_key_file(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("admin_key") is not None:
            raise ValueError("the key itself is given too, one of both is needed")
        if value is not None:
            _read_key(value)
        return value

    @field_validator("repository")
    @classmethod
    def _check_repository(cls, value: str) -> str:
        if missing := [name for name in _split(value) if not Path(name).is_dir()]:
            raise ValueError(f"{missing[0]} is no directory")
        return value

    @field_validator("port", mode="before")
    @classmethod
    def _ignore_service_link(cls, value: Any) -> Any:
        return 8000 if isinstance(value, str) and value.startswith("tcp://") else value

    @property
    def repository_dirs(self) -> tuple[Path, ...]:
        """The directories of `repository`."""
        return tuple(map(Path, _split(self.repository)))

    def read_admin_key(self) -> str | None:
        """The admin key, wherever it is kept; None = there is none. Raises ValueError when its file has gone."""
        if self.admin_key_file is not None:
            return _read_key(self.admin_key_file)
        return None if self.admin_key is None else self.admin_key.get_secret_value()


def _split(directories: str) -> list[str]:
    return [name for name in directories.split(os.pathsep) if name]


def _read_key(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    return _checked_key(content.decode("latin-1").strip())


def _checked_key(key: str) -> str:
    """Raises ValueError for one that could be guessed, or that no header can carry. Its message never has the key."""
    if not _KEY.fullmatch(key):
        raise ValueError("a key has 16 to 256 visible ASCII characters")
    return key


def _is_port_link(name: str) -> bool:
    return name.upper() == f"{PREFIX}PORT" and os.environ[name].startswith("tcp://")


def load_settings(**overrides: Any) -> tuple[Settings, list[str]]:
    """Settings from the environment and overrides (None = not given), and the service-link names that were ignored.

    Raises StartupError naming every bad or unknown one as it was given: the variable, or the option with its value.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    names = {name for name in os.environ if name.upper().startswith(PREFIX)}
    links = {name for name in names if _SERVICE_LINK.match(name) or _is_port_link(name)}
    faults = _unknown(names - links)
    try:
        settings = Settings(**given)
    except ValidationError as error:
        faults += [_told(fault, given) for fault in error.errors()]
    if faults:
        raise StartupError(f"bad settings: {'; '.join(faults)}")
    return settings, sorted(links)


def _unknown(names: Iterable[str]) -> list[str]:
    """A line for every variable that is no setting."""
    fields = [field.upper() for field in Settings.model_fields]
    faults = []
    for name in sorted(names):
        field = name.upper().removeprefix(PREFIX)
        if field not in fields:
            near = get_close_matches(field, fields, n=1)
            faults.append(
                f"{name} is unknown, {f'did you mean {PREFIX}{near[0]}?' if near else 'see docs/operations.md'}"
            )
    return faults


def _told(fault: ErrorDetails, given: Mapping[str, Any]) -> str:
    """A line for a value that cannot be."""
    field = str(fault["loc"][0])
    name = f"--{field.replace('_', '-')}" if field in given else PREFIX + field.upper()
    told = f"{name}: {fault['msg'].removeprefix('Value error, ')}"
    return told if field in _SECRETS else f"{told}, got {str(fault['input'])!r:.80}"
