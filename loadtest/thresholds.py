"""The limits of a run, read from a TOML file. A missing or unknown key is refused by its name."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadtest.bounds import KNOWN_SHARE
from loadtest.errors import LoadTestError

DEFAULT_FILE = Path(__file__).with_name("thresholds.toml")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Latencies(_Table):
    """A limit for each kind of request, in milliseconds."""

    short: float = Field(gt=0)
    passage: float = Field(gt=0)
    mixed: float = Field(gt=0)
    list32: float = Field(gt=0)
    attention: float = Field(gt=0)
    classify: float = Field(gt=0)
    rerank: float = Field(gt=0)

    def of(self, kind: str) -> float:
        """The limit of one kind."""
        return float(getattr(self, kind))


class SoakLimits(_Table):
    """How much the last third of a soak may differ from its first third."""

    max_growth_bytes_per_reply: float = Field(ge=0)
    memory_slack_mib: float = Field(ge=0)
    max_p99_ratio: float = Field(ge=1)
    p99_slack_ms: float = Field(ge=0)


class Thresholds(_Table):
    """Every limit; `thresholds.toml` says what each one means."""

    max_failure_ratio: float = Field(ge=0, lt=1)
    min_per_s: float = Field(ge=0)
    min_compared_share: float = Field(ge=KNOWN_SHARE.least, le=1)
    max_delta: float = Field(gt=0)
    max_lateness_ms: float = Field(gt=0)
    max_gap_s: float = Field(gt=0)
    p95_ms: Latencies
    p99_ms: Latencies
    max_ms: Latencies
    soak: SoakLimits


def read_thresholds(file: Path = DEFAULT_FILE) -> Thresholds:
    """The limits in a file. Raises LoadTestError naming every key that is missing, unknown or impossible."""
    try:
        return Thresholds.model_validate(tomllib.loads(file.read_text("utf-8-sig")))
    except OSError as error:
        raise LoadTestError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LoadTestError(f"{file}: is not UTF-8: {error.reason} at byte {error.start}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise LoadTestError(f"{file}: {error}") from None
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc']))}: {_TOLD.get(one['type'], one['msg'])}" for one in error.errors()]
        raise LoadTestError(f"{file}: {'; '.join(faults)}") from None


_TOLD = {"missing": "is missing", "extra_forbidden": "is no threshold"}
