"""`python -m claims`: measure both claims, draw them, write down the numbers."""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from claims import cost, figures, recall, report


def main(
    only: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM", help="cost or recall; may be repeated; both when not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where figures and numbers go.")] = Path("docs/figures"),
    workers: Annotated[int, typer.Option(min=1, help="Trainings at a time, a core each.")] = 2,
) -> None:
    """Measure what attention costs and how far back it recalls, beside what it is measured against."""
    wanted = only or ["cost", "recall"]
    if unknown := sorted(set(wanted) - {"cost", "recall"}):
        raise typer.BadParameter(f"{', '.join(unknown)} is not one of cost, recall", param_hint="--only")
    out.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    measured: dict[str, Any] = {}
    with Progress(*columns) as progress:
        if "cost" in wanted:
            measured["cost"] = report.describe_cost(found := _measure_cost(progress))
            figures.draw_cost(found, out / "cost.png")
        if "recall" in wanted:
            measured["recall"] = report.describe_recall(results := _measure_recall(progress, workers))
            figures.draw_recall(results, out / "recall.png")
    report.write(measured, out)
    progress.console.print((out / "claims.md").read_text(), soft_wrap=True, markup=False, highlight=False)


def _measure_cost(progress: Progress) -> cost.Cost:
    task = progress.add_task("cost: turns", total=cost.num_turns())
    return cost.measure(lambda: progress.advance(task))


def _measure_recall(progress: Progress, workers: int) -> list[recall.Recall]:
    """Every model, schedule and seed, in that order; each in a process of its own, so that none shares a core."""
    jobs = list(product(recall.MODELS, recall.SCHEDULES, recall.SEEDS))
    task = progress.add_task("recall: models trained", total=len(jobs))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures: list[Future[recall.Recall]] = [pool.submit(recall.train_and_test, *job) for job in jobs]
        for _ in as_completed(futures):
            progress.advance(task)
        return [future.result() for future in futures]


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app(prog_name="python -m claims")
