"""``mooncake-preflight trace``: recorded requests, described and converted."""

from __future__ import annotations

import sys

import click

from preflight.base.output import Progress, columns, say
from preflight.cli.commands import CONTEXT, LazyGroup, command, examples_text, say_answer
from preflight.cli.options import FILE_TIMEOUT, JSON, Integer

# Lines that are written at once.
_CHUNK = 1000

FILE = click.argument("file")
PAGE = click.option(
    "--page-tokens", type=Integer(1, 1 << 20), default=64, show_default=True,
    help="Tokens of one block, where the trace has tokens or text.",
)  # fmt: skip
BLOCK = click.option(
    "--trace-block-tokens", type=Integer(1, 1 << 20),
    help="Tokens of a block of the trace. Default: what it says, or its format has.",
)  # fmt: skip
LATER = {name: f"preflight.cli.trace:{name}" for name in ("describe", "convert")}


@click.group(
    "trace",
    cls=LazyGroup,
    later={"Commands": LATER},
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight trace describe requests.jsonl.xz",
        "mooncake-preflight trace convert sglang.log > requests.jsonl",
        "mooncake-preflight capacity --trace requests.jsonl launch.sh",
    ),
)
def trace() -> None:
    """Describe recorded requests, or convert them without their text.

    FILE is a trace or a request log, as capacity --trace reads it; - is standard input.
    """


@command("describe", "mooncake-preflight trace describe requests.jsonl.xz")
@JSON
@PAGE
@BLOCK
@FILE_TIMEOUT
@FILE
def describe(as_json: bool, page_tokens: int, trace_block_tokens: int | None, file: str) -> int:
    """Say what a trace is like: requests, lengths, reuse, and how that changes over time.

    Exit codes: 0 described; 64 usage error, or a line of the trace is not valid; 70 a defect of
    this program.
    """
    from preflight.cache_sizing.traces.describe import (
        describe_trace,
        description_object,
        description_text,
    )
    from preflight.cache_sizing.traces.formats import open_trace

    progress = Progress()
    description = describe_trace(open_trace(file, page_tokens, trace_block_tokens), progress.show)
    progress.clear()
    if as_json:
        say_answer("trace", 0, description_object(description))
    else:
        say(description_text(description, columns()))
    return 0


@command("convert", "mooncake-preflight trace convert sglang.log > requests.jsonl")
@PAGE
@BLOCK
@click.option(
    "--salt", metavar="TEXT",
    help="The same salt gives blocks the same hashes. Default: a new salt each time.",
)  # fmt: skip
@FILE_TIMEOUT
@FILE
def convert(page_tokens: int, trace_block_tokens: int | None, salt: str | None, file: str) -> int:
    """Write a trace or a log in Mooncake's format: blocks as salted hashes, and no text.

    Exit codes: 0 written; 64 usage error; 70 a defect of this program.
    """
    import secrets
    from itertools import islice

    from preflight.cache_sizing.traces.describe import mooncake_lines
    from preflight.cache_sizing.traces.formats import open_trace

    trace = open_trace(file, page_tokens, trace_block_tokens)
    key = secrets.token_bytes(32) if salt is None else salt.encode()[:64]
    lines, written = mooncake_lines(trace, key), 0
    progress = Progress(not sys.stdout.isatty())
    while chunk := list(islice(lines, _CHUNK)):
        say("\n".join(chunk))
        written += len(chunk)
        progress.show(f"{trace.name}: {written:,} requests")
    progress.clear()
    for note in trace.notes:
        say(f"note: {note}", err=True)
    return 0
