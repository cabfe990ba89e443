"""The five commands. Each imports what it needs when it runs: help costs nothing, serving never loads what builds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from qkv import __version__
from service.errors import StartupError, printable

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_PRECISIONS: dict[str, Literal["float32", "float16", "int8"]] = {
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
    "fp16": "float16",
    "int8": "int8",
}

_Task = Literal["embedding", "sequence_classification", "token_classification", "sparse", "late_interaction"]
_FILE_HELP = (
    "The ready ONNX file of a model directory to serve, such as onnx/model.onnx; default its weights, where it has any."
)

BundleDir = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A directory with manifest.json.")]


def _example(words: str) -> dict[str, Any]:
    return {"epilog": f"Example: {words}", "no_args_is_help": False}


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(epilog="Example: qkv export ./my-model --out bundles/my-model && qkv serve bundles/my-model")
def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Attention encoders: from a model's weights to embeddings and attention over HTTP."""


@app.command(**_example("qkv export net.py:Net --checkpoint net.safetensors --kwargs '{\"dim\": 64}'"))
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A model directory, the name of a published model, ORG/NAME[@REVISION] of the hub, preset:NAME, "
            "FILE.py:CLASS, PACKAGE.MODULE:CLASS, or FILE.onnx.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Where the bundle goes; default bundles/NAME.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the API; default the source's.")] = None,
    precision: Annotated[
        Literal["float32", "float16", "fp32", "fp16", "int8"] | None,
        typer.Option(
            help="Of weights and matrix products; default float32. float16 (fp16) is for GPUs, int8 for CPUs: faster, "
            "and less exact."
        ),
    ] = None,
    task: Annotated[
        _Task | None,
        typer.Option(help="What a model directory is used for; default what its modules and architectures say."),
    ] = None,
    file: Annotated[str | None, typer.Option(help=_FILE_HELP)] = None,
    via: Annotated[
        Literal["torch"] | None,
        typer.Option(
            help="torch: transformers loads a model directory and PyTorch traces it, for families that are not built "
            "here: docs/models.md."
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            metavar="",
            help="With --via torch: run the Python files that config.json names. Read them first.",
        ),
    ] = False,
    goldens: Annotated[Path | None, typer.Option(help="Stored outputs of the reference: proof without torch.")] = None,
    unproved: Annotated[
        bool,
        typer.Option(
            "--unproved",
            metavar="",
            help="Write the bundle even if nothing proves it; never compare a ready ONNX file with PyTorch.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", metavar="", help="Replace the bundle that is there.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights of a class or preset: a safetensors file that fits exactly.")
    ] = None,
    kwargs: Annotated[str | None, typer.Option(help="Arguments of a class: a JSON object.")] = None,
    signature: Annotated[
        Path | None,
        typer.Option(help="Inputs and outputs of a class or graph that does not declare them: a TOML file."),
    ] = None,
) -> None:
    """Turn a model into a verified bundle. Exits with 1 when the source or the proof is not right."""
    from qkv.build import BuildOptions, build

    chosen = _PRECISIONS[precision] if precision else None
    options = BuildOptions(
        out, name, chosen, goldens, unproved, force, checkpoint, kwargs, signature, task, file, via, trust_remote_code
    )
    with _one_line_errors():
        build(source, options)


@app.command(**_example("qkv parity bundles/all-MiniLM-L6-v2 --full"))
def parity(
    bundle: BundleDir,
    full: Annotated[
        bool, typer.Option("--full", metavar="", help="Every case of the battery instead of the quick ones.")
    ] = False,
    module: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="The class that the bundle was made of: FILE.py:CLASS, PACKAGE.MODULE:CLASS."
        ),
    ] = None,
) -> None:
    """Compare a bundle's graphs with PyTorch, case by case. Exits with 1 when any gate fails. Needs torch."""
    from qkv.prove import prove

    with _one_line_errors():
        has_passed = prove(bundle, form="full" if full else "quick", module=module)
    raise typer.Exit(0 if has_passed else 1)


@app.command(**_example("qkv serve bundles/all-MiniLM-L6-v2 --port 9000"))
def serve(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="Bundles, model directories or directories of bundles; default bundles/all-MiniLM-L6-v2.",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [QKV_HOST].")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one [QKV_PORT].")] = None,
    device: Annotated[Literal["cpu", "cuda", "auto"] | None, typer.Option(help="Where it runs [QKV_DEVICE].")] = None,
    num_threads: Annotated[int | None, typer.Option(help="CPU threads for the model [QKV_NUM_THREADS].")] = None,
    log_level: Annotated[str | None, typer.Option(help="Least severe level logged [QKV_LOG_LEVEL].")] = None,
    task: Annotated[
        _Task | None,
        typer.Option(help="What a model directory is used for; default what its modules and architectures say."),
    ] = None,
    unproved: Annotated[
        bool,
        typer.Option(
            "--unproved",
            metavar="",
            help="Build a model directory even if nothing proves it; never compare a ready ONNX file with PyTorch.",
        ),
    ] = False,
    file: Annotated[str | None, typer.Option(help=_FILE_HELP)] = None,
) -> None:
    """Serve models over HTTP until a signal. Every other setting is an environment variable: docs/operations.md."""
    from qkv.serve import serve as run

    given = {"host": host, "port": port, "device": device, "num_threads": num_threads, "log_level": log_level}
    with _one_line_errors():
        exit_code = run(paths or [], given, is_unproved_allowed=unproved, task=task, file=file)
    raise typer.Exit(exit_code)


@app.command(**_example("qkv encode bundles/all-MiniLM-L6-v2 notes.jsonl notes.npy --field body"))
def encode(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, or a model directory.")],
    texts: Annotated[
        Path, typer.Argument(metavar="IN", help="Texts: .txt, one a line; .jsonl; .csv with a header; .parquet.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where answers go, in order: .npy, .jsonl or .parquet.")],
    field: Annotated[
        str | None, typer.Option("--field", "--column", help="Which field or column has the text; default text.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="Which has the second text of a pair.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A field or column that goes with the answer; may be given again.")
    ] = None,
    prompt_name: Annotated[str | None, typer.Option(help="Which of the model's prompts goes before each text.")] = None,
    truncate: Annotated[
        Literal["error", "left", "right"] | None,
        typer.Option(help="Side cut when a text is too long; default error [QKV_TRUNCATE]."),
    ] = None,
    dimensions: Annotated[int | None, typer.Option(help="Keep this many leading dimensions, normalised again.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--raw", help="Vectors of length 1 or not; default: as the model says.")
    ] = None,
    embedding_space: Annotated[
        str | None, typer.Option(help="The space of your index: vectors of another one are refused.")
    ] = None,
    device: Annotated[Literal["cpu", "cuda", "auto"] | None, typer.Option(help="Where it runs [QKV_DEVICE].")] = None,
    num_threads: Annotated[int | None, typer.Option(help="CPU threads for the model [QKV_NUM_THREADS].")] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Replace OUT, and what another run has left unfinished.")
    ] = False,
) -> None:
    """Encode a file of texts, as over HTTP. What was interrupted goes on when the same is asked again."""
    from qkv.encode import EncodeOptions
    from qkv.encode import encode as run

    options = EncodeOptions(
        field, pair, tuple(keep or ()), prompt_name, truncate, dimensions, normalize, embedding_space, force
    )
    with _one_line_errors():
        run(bundle, texts, out, options, {"device": device, "num_threads": num_threads})


@app.command(**_example("qkv models bundles"))
def models(
    dirs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Bundles, or directories of bundles; default bundles/ and the cache."),
    ] = None,
) -> None:
    """List bundles and verify every file of each. Exits with 1 when one is faulty."""
    from qkv.listing import list_bundles

    with _one_line_errors():
        are_whole = list_bundles(dirs)
    raise typer.Exit(0 if are_whole else 1)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What the user can mend is told in a line, or in the lines of its faults; a traceback is left to bugs."""
    try:
        yield
    except StartupError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a directory that may not be read
        _fail(printable(f"{error.filename or 'files'}: {error.strerror or error}"))
    except Exception as error:
        # Known by name: importing export.errors here would tie every command to the package export.
        if type(error).__name__ != "ExportError":
            raise
        _fail(str(error))


def _fail(message: str) -> None:
    sys.stderr.write(f"qkv: {message}\n")
    raise typer.Exit(1)
