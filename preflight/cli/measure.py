"""``mooncake-preflight measure``: how fast it is here, with the launch's own library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from preflight.cli.commands import command
from preflight.cli.options import (
    COLOR,
    FILE,
    JSON,
    SIZE,
    AnyParamType,
    NumberOption,
    timeout_option,
    with_launch_of_installed,
)

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


class Duration(AnyParamType):
    """``60s`` or ``2m``, in seconds; a bare number is seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        number, scale = str(value).strip(), 1
        if number[-1:] in ("s", "m"):
            number, scale = number[:-1], 60 if number[-1] == "m" else 1
        if not number.isascii() or not number.isdecimal() or len(number) > 6:
            self.fail(f"{value!r} is not a time: write 60s or 2m", param, ctx)
        return float(int(number) * scale)


@command(
    "measure",
    "mooncake-preflight measure launch.sh",
    "mooncake-preflight measure --only memory,storage --budget 20s launch.sh",
    "mooncake-preflight measure --serve             # on one node, which prints HOST:PORT",
    "mooncake-preflight measure --to HOST:PORT      # on the other",
)
@JSON
@click.option(
    "--only",
    "only_parts",
    metavar="PART[,PART]",
    default="",
    help="memory, transfer, store, registration, storage. Default: all; with --to transfer.",
)
@click.option(
    "--budget", "budget_seconds", type=Duration(), default="60s", show_default=True,
    help="The time that measuring may take, or that --serve waits.",
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
    "--python",
    metavar="PATH",
    help="The interpreter that has Mooncake. Default: the launch's, else the one that runs this.",
)
@click.option(
    "--prefill-rate",
    "tokens_per_second",
    type=NumberOption(0, 1e12, min_open=True),
    metavar="TOKENS/S",
    help="How fast the server computes prompts: what is slower than that is said.",
)
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
    only_parts: str,
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

    parts = tuple(part.strip() for part in only_parts.split(",") if part.strip())
    if serving:
        if peer is not None or parts or save is not None:
            raise click.UsageError("--serve takes no --to, --only or --save: it measures nothing")

        def told(where: str) -> None:
            answer = {"address": where, "budget_seconds": budget_seconds}
            if as_json:
                say_json(envelope("measure", 0, {"served": answer}))
            else:
                say(f"{where}\non the other host: mooncake-preflight measure --to {where}")

        at = address or run.own_address()
        run.serve(launch, at, budget_seconds, spend_bytes, python, told)
        return 0
    if address:
        raise click.UsageError("--address is about --serve")
    if peer is not None and not parts:
        parts = ("transfer",)
    answer = run.measure(
        launch, parts, budget_seconds, spend_bytes, peer, python, tokens_per_second
    )
    from preflight.measuring.report import answer_object, answer_text

    whole = envelope(
        "measure",
        answer.exit_code,
        answer_object(answer),
        word=answer.status,
        reason=answer.reason,
        launch=answer.launch,
    )
    if save is not None:
        saved(save, save, f"{json_text(whole)}\n".encode(), 0o644, timeout_seconds)
    if as_json:
        say_json(whole)
    else:
        say(answer_text(answer, color))
    return answer.exit_code
