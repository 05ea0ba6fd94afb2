"""``mooncake-preflight measure``: how fast it is here, with the launch's own library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import (
    COLOR,
    FILE,
    JSON,
    SIZE,
    NumberOption,
    timeout_option,
    with_launch_of_installed,
)

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords

PARTS = ("memory", "transfer", "store", "registration", "storage")


def seconds_of(_context: object, _option: object, text: str) -> float:
    """Return a time of ``60s`` or ``2m``; a bare number is seconds."""
    found = re.fullmatch(r"([0-9]{1,6})([sm]?)", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a time: write 60s or 2m")
    return float(found[1]) * (60 if found[2] == "m" else 1)


def parts_of(_context: object, _option: object, text: str) -> tuple[str, ...]:
    """Return the parts of a text with commas between them."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        if part not in PARTS:
            raise click.BadParameter(f"{part!r} is none of {', '.join(PARTS)}")
    return parts


@command(
    "measure",
    "mooncake-preflight measure launch.sh",
    "mooncake-preflight measure --only memory,storage --budget 20s launch.sh",
    "mooncake-preflight measure --serve             # on one node, which prints HOST:PORT",
    "mooncake-preflight measure --to HOST:PORT      # on the other",
)
@JSON
@click.option(
    "--only", "parts", metavar="PART[,PART]", default="", callback=parts_of,
    help=f"Of {', '.join(PARTS)}. Default: all; with --to transfer.",
)  # fmt: skip
@click.option(
    "--budget", "budget_seconds", metavar="TIME", default="60s", show_default=True,
    callback=seconds_of, help="The time that measuring may take, or that --serve waits.",
)  # fmt: skip
@click.option(
    "--spend", "spend_bytes", type=SIZE, default="2gb", show_default=True,
    help="The most memory that is taken at a time, and the most that is written.",
)  # fmt: skip
@click.option("--to", "peer", metavar="HOST:PORT", help="Transfer to another host's --serve.")
@click.option("--serve", "serving", is_flag=True, help="Be the other side, until --budget ends.")
@click.option(
    "--address",
    default="",
    metavar="ADDRESS",
    help="Of this host, for --serve. Default: by which it reaches others.",
)
@click.option(
    "--python", metavar="PATH",
    help="The interpreter that has Mooncake. Default: the launch's, else the one that runs this.",
)  # fmt: skip
@click.option(
    "--prefill-rate", "tokens_per_second", type=NumberOption(0, min_open=True), metavar="TOKENS/S",
    help="How fast the server computes prompts: what is slower than that is said.",
)  # fmt: skip
@click.option("--save", metavar="FILE", type=FILE, help="Keep the answer as JSON too.")
@timeout_option(
    NumberOption(0, 3600, min_open=True),
    20.0,
    "Seconds after which a file that does not answer is given up.",
)
@COLOR
@with_launch_of_installed
def measure(
    *,
    as_json: bool,
    parts: tuple[str, ...],
    budget_seconds: float,
    spend_bytes: int,
    peer: str | None,
    serving: bool,
    address: str,
    python: str | None,
    tokens_per_second: float | None,
    save: str | None,
    timeout_seconds: float,
    color: str,
    launch: LaunchWords,
) -> int:
    """Measure how fast memory, transfers, store, NICs and storage are, with the real Mooncake.

    memory is populated, objects are moved between two engines (of this host, or of two with --serve
    and --to), put into a store of its own and got; each NIC registers memory; the folder of SSD
    offload is written and read. With LAUNCH (a file, or a command after --) in its sizes, by its
    protocol, devices and variables. No running service is touched; nothing is left behind.

    Exit codes: 0 measured; 1 something is slower, or another thing, than the launch means; 3 not
    measured, or broken off; 64 usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.base.envelope import envelope
    from preflight.base.output import json_text, say, say_json
    from preflight.base.within import save as saved
    from preflight.measuring import measure as run
    from preflight.measuring.report import answer_object, answer_text

    if serving and (peer is not None or parts or save is not None):
        raise click.UsageError("--serve takes no --to, --only or --save: it measures nothing")
    if address and not serving:
        raise click.UsageError("--address is about --serve")
    measuring, wanted, called = run.prepare(launch, python, budget_seconds, spend_bytes)
    if serving:

        def told(where: str) -> None:
            served = {"served": {"address": where, "budget_seconds": budget_seconds}}
            if as_json:
                say_json(envelope("measure", 0, served, launch=called))
            else:
                say(f"{where}\non the other host: mooncake-preflight measure --to {where}")

        run.serve(measuring, address or run.own_address(), budget_seconds, told)
        return 0
    only = parts or (() if peer is None else ("transfer",))
    answer = run.measure(measuring, wanted, only, peer, tokens_per_second)
    code, word = answer.exit_code, answer.status
    found = envelope(
        "measure", code, answer_object(answer), word=word, reason=answer.reason, launch=called
    )
    if save is not None:
        saved(save, save, f"{json_text(found)}\n".encode(), 0o644, timeout_seconds)
    if as_json:
        say_json(found)
    else:
        say(answer_text(answer, color))
    return code
