"""The command: options in, exit code out. Needs a process that Locust has patched: see `__main__`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from loadtest import bounds
from loadtest.bounds import Bounds
from loadtest.errors import LoadTestError
from loadtest.report import RESULTS_DIR, plain_or_terminal
from loadtest.session import DURATION_S, USERS, Plan, run_plan
from loadtest.target import Address
from loadtest.texts import KINDS
from loadtest.thresholds import DEFAULT_FILE
from loadtest.work import Options

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def _by_shape(defaults: Mapping[str, float]) -> str:
    return ", ".join(f"{shape} {value:g}" for shape, value in defaults.items())


def _within(allowed: Bounds) -> Callable[[float | None], float | None]:
    """Click's own ranges take a NaN."""

    def check(value: float | None) -> float | None:
        if value is not None and value not in allowed:
            raise typer.BadParameter(f"{value:g} is not {allowed}")
        return value

    return check


class ShapeName(StrEnum):
    """How the load goes over time."""

    STEADY = "steady"
    STEP = "step"
    SPIKE = "spike"
    SOAK = "soak"
    CAPACITY = "capacity"


@app.command(
    epilog="Example: python -m loadtest --url http://127.0.0.1:8000 --shape spike --users 20 --kinds short,mixed"
)
def main(
    url: Annotated[
        str | None, typer.Option(help="A running server; default: `qkv serve` of the bundle is run.")
    ] = None,
    bundle: Annotated[Path, typer.Option(help="What is served when no URL is given.")] = Path(
        "bundles/all-MiniLM-L6-v2"
    ),
    shape: Annotated[ShapeName, typer.Option(help="How the load goes over time.")] = ShapeName.STEADY,
    users: Annotated[
        int | None,
        typer.Option(min=1, help=f"Most users at once; default: {_by_shape(USERS)}, soak 80 % of the capacity."),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            callback=_within(bounds.DURATION_S), metavar="S", help=f"Seconds; default: {_by_shape(DURATION_S)}."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(callback=_within(bounds.WAIT_S), metavar="S", help="Mean wait of a user after each reply.")
    ] = 0.5,
    kinds: Annotated[
        str | None, typer.Option(metavar="KIND,…", help=f"{', '.join(KINDS)}; default: what is offered.")
    ] = None,
    openai_only: Annotated[
        bool,
        typer.Option("--openai-only", metavar="", help="Nothing but POST /v1/embeddings with `input` and `model`."),
    ] = False,
    model: Annotated[str | None, typer.Option(help="Default: the only one that GET /v1/models lists.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="LOADTEST_API_KEY", help="Sent as a bearer token.")] = None,
    thresholds: Annotated[Path, typer.Option(help="The limits, a TOML file.")] = DEFAULT_FILE,
    known_share: Annotated[
        float,
        typer.Option(
            callback=_within(bounds.KNOWN_SHARE), help="Share of the requests that are compared with known answers."
        ),
    ] = 0.05,
    max_words: Annotated[
        int | None,
        typer.Option(
            min=int(bounds.NUM_WORDS.least), help="Longest text; default: as the model allows, 100 if it does not say."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(callback=_within(bounds.TIMEOUT_S), metavar="S", help="Longest wait for a reply.")
    ] = 30.0,
    step_s: Annotated[
        float, typer.Option(callback=_within(bounds.STEP_S), metavar="S", help="Seconds of each step of a search.")
    ] = 10.0,
    target_ms: Annotated[
        float | None,
        typer.Option(
            callback=_within(bounds.TARGET_MS),
            help="95th percentile that a search keeps; default: the thresholds' p95_ms.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Other texts.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the folder with the results goes.")] = RESULTS_DIR,
) -> None:
    """Put load on a server, check every reply, and judge the run by its thresholds.

    Exits with 1, and the line that failed, when a limit was missed or a reply was wrong.
    """
    plan = Plan(
        address=None if url is None else Address(url, api_key, timeout),
        bundle=bundle,
        shape=shape.value,
        users=users,
        duration_s=duration,
        wait_s=wait,
        step_s=step_s,
        target_ms=target_ms,
        model=model,
        is_openai_only=openai_only,
        options=Options(_names(kinds), known_share=known_share, longest=max_words, seed=seed),
        thresholds=thresholds,
        out=out,
        timeout_s=timeout,
    )
    # SIGTERM ends the run as Ctrl-C does: the server that was started must not outlive it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _one_line_errors():
        has_passed = run_plan(plan, plain_or_terminal())
    raise typer.Exit(0 if has_passed else 1)


def _names(kinds: str | None) -> tuple[str, ...]:
    """None = all that the server has."""
    if kinds is None:
        return ()
    names = tuple(filter(None, (name.strip() for name in kinds.split(","))))
    if not names:
        raise typer.BadParameter(f"name at least one of {', '.join(KINDS)}", param_hint="--kinds")
    return names


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What the user can mend is told in a line; a traceback is left to bugs."""
    try:
        yield
    except LoadTestError as error:
        typer.echo(f"loadtest: {error}", err=True)
        raise typer.Exit(1) from None
