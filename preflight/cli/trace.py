"""``mooncake-preflight trace``: recorded requests, described, converted, cut and made."""

from __future__ import annotations

import sys

import click

from preflight.cli.options import CONTEXT, JSON, Integer, Number, command

SCHEMA = "mooncake-preflight/trace/v1"
# As preflight.traces.generate.PROFILES, which is imported where it is used.
KINDS = ("chat", "agent", "documents", "rag", "rounds")
FILE = click.argument("file")
PAGE = click.option(
    "--page-tokens",
    type=Integer(1, 1 << 20),
    default=64,
    show_default=True,
    help="Of the blocks that tokens and texts become.",
)
BLOCK = click.option(
    "--trace-block-tokens",
    type=Integer(1, 1 << 20),
    help="Tokens of a block of the trace. Default: what it says, or its format has.",
)
SALT = click.option("--salt", help="Makes the same hashes of several files. Default: a new one.")


@click.group("trace", context_settings=CONTEXT)
def trace() -> None:
    """Describe recorded requests, convert them without their text, cut them, or make some.

    FILE is a trace or a request log, as capacity --trace reads it; - is standard input.
    """


@trace.command(
    "describe",
    cls=type(command("describe")(lambda: None)),
    context_settings=CONTEXT,
)
@JSON
@PAGE
@BLOCK
@FILE
def describe(as_json: bool, page_tokens: int, trace_block_tokens: int | None, file: str) -> int:
    """Say what a trace is like: requests, lengths, reuse, and how that changes over time."""
    from preflight.base.output import columns, say, say_json
    from preflight.base.progress import Progress
    from preflight.traces.describe import described
    from preflight.traces.formats import open_trace
    from preflight.traces.report import described_object, described_text

    progress = Progress()
    found = described(open_trace(file, page_tokens, trace_block_tokens), progress.show)
    progress.clear()
    if as_json:
        say_json({"schema": SCHEMA, **described_object(found)})
    else:
        say(described_text(found, columns()))
    return 0
