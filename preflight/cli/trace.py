"""``mooncake-preflight trace``: recorded requests, described, converted, cut and made."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from preflight.cli.capacity import KINDS
from preflight.cli.commands import CONTEXT, LazyGroup, command, examples_text
from preflight.cli.options import FILE_TIMEOUT, JSON
from preflight.cli.value_types import Integer, Part

if TYPE_CHECKING:
    from preflight.traces.formats import Trace

# Lines that are written at once.
_CHUNK = 1000

FILE = click.argument("file")
PAGE = click.option(
    "--page-tokens",
    type=Integer(1, 1 << 20),
    default=64,
    show_default=True,
    help="Tokens of one block, where the trace has tokens or text.",
)
BLOCK = click.option(
    "--trace-block-tokens",
    type=Integer(1, 1 << 20),
    help="Tokens of a block of the trace. Default: what it says, or its format has.",
)
SALT = click.option(
    "--salt", help="The same salt gives blocks the same hashes. Default: a new salt each time."
)


LATER = {
    name: f"preflight.cli.trace:{name}" for name in ("describe", "convert", "sample", "generate")
}


@click.group(
    "trace",
    cls=LazyGroup,
    later={"Commands": LATER},
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight trace describe requests.jsonl.xz",
        "mooncake-preflight trace generate agent --requests 5000 > agent.jsonl",
        "mooncake-preflight capacity --trace agent.jsonl launch.sh",
    ),
)
def trace() -> None:
    """Describe recorded requests, convert them without their text, cut them, or make some.

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
    from preflight.base.envelope import envelope
    from preflight.base.output import columns, say, say_json
    from preflight.base.progress import Progress
    from preflight.traces.describe import described, described_object, described_text
    from preflight.traces.formats import open_trace

    progress = Progress()
    found = described(open_trace(file, page_tokens, trace_block_tokens), progress.show)
    progress.clear()
    if as_json:
        say_json(envelope("trace", 0, described_object(found)))
    else:
        say(described_text(found, columns()))
    return 0


@command("convert", "mooncake-preflight trace convert sglang.log > requests.jsonl")
@PAGE
@BLOCK
@SALT
@FILE_TIMEOUT
@FILE
def convert(page_tokens: int, trace_block_tokens: int | None, salt: str | None, file: str) -> int:
    """Write a trace or a log in Mooncake's format: blocks as salted hashes, and no text.

    Exit codes: 0 written; 64 usage error; 70 a defect of this program.
    """
    from preflight.traces.formats import open_trace

    return _write(open_trace(file, page_tokens, trace_block_tokens), salt)


@command("sample", "mooncake-preflight trace sample --part 10% requests.jsonl > tenth.jsonl")
@click.option("--part", type=Part(), required=True, help="The part of the conversations, as 10%.")
@PAGE
@BLOCK
@SALT
@FILE_TIMEOUT
@FILE
def sample(
    part: float, page_tokens: int, trace_block_tokens: int | None, salt: str | None, file: str
) -> int:
    """Write a part of the conversations in Mooncake's format, each of them whole.

    Where the trace names no conversations, requests whose first two blocks are alike stay together.

    Exit codes: 0 written; 64 usage error; 70 a defect of this program.
    """
    from preflight.traces.describe import sampled
    from preflight.traces.formats import open_trace

    found = open_trace(file, page_tokens, trace_block_tokens)
    key = (salt or "").encode()[:64]
    return _write(found._replace(requests=sampled(found.requests, part, key)), salt)


@command(
    "generate",
    "mooncake-preflight trace generate agent --requests 5000 > agent.jsonl",
    "mooncake-preflight trace generate --workload '--num-clients 80 --num-rounds 10 "
    "--request-length 2048' > rounds.jsonl",
)
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option(
    "--workload", metavar="COMMAND", help="In place of a kind: bench_multiturn.py's command line."
)
@click.option(
    "--requests",
    type=Integer(1, 100_000_000),
    default=20_000,
    show_default=True,
    help="Requests of a kind; a workload has its own number.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed makes the same trace."
)
@PAGE
def generate(
    kind: str | None, workload: str | None, requests: int, seed: int, page_tokens: int
) -> int:
    """Make a trace in Mooncake's format: of a kind of traffic, or of a benchmark's workload.

    The numbers of each kind are rounded from what people report of such traffic; none is copied
    from a trace.

    Exit codes: 0 written; 64 usage error; 70 a defect of this program.
    """
    from preflight.base.usage_error import UsageError
    from preflight.traces.generate import profile_trace, rounds_trace

    if (kind is None) == (workload is None):
        raise UsageError(f"give one kind ({', '.join(KINDS)}), or --workload with a command line")
    if workload is None:
        return _write(profile_trace(str(kind), page_tokens, requests, seed), str(seed))
    from preflight.capacity.trace_answer import rounds_of
    from preflight.capacity.workload import read_command

    return _write(rounds_trace(rounds_of(read_command(workload)), page_tokens, seed), str(seed))


def _write(found: Trace, salt: str | None) -> int:
    import secrets
    from itertools import islice

    from preflight.base.output import say
    from preflight.base.progress import Progress
    from preflight.traces.describe import mooncake_lines

    key = secrets.token_bytes(32) if salt is None else salt.encode()[:64]
    lines, written = mooncake_lines(found, key), 0
    progress = Progress(not sys.stdout.isatty())
    while chunk := list(islice(lines, _CHUNK)):
        say("\n".join(chunk))
        written += len(chunk)
        progress.show(f"{found.name}: {written:,} requests")
    progress.clear()
    for note in found.notes:
        say(f"note: {note}", err=True)
    return 0


for each in (describe, convert, sample, generate):
    trace.add_command(each)
