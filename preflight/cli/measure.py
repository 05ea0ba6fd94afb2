"""``mooncake-preflight measure``: how fast it is here, with the launch's own library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from preflight.base.output import json_text, say, say_json
from preflight.cli.commands import command, say_answer
from preflight.cli.options import (
    COLOR,
    FILE,
    JSON,
    SIZE,
    Integer,
    NumberOption,
    timeout_option,
    with_launch_of_installed,
)

if TYPE_CHECKING:
    from checks.framework.unknown import Unknown
    from preflight.benchmark.measuring.kills import Survival
    from preflight.command_inputs.launch_words import LaunchWords

VICTIMS = ("master", "client", "metadata")
PARTS = ("memory", "transfer", "store", "registration", "storage")


def seconds_of(_context: object, _option: object, text: str | None) -> float | None:
    """Return the seconds of a time as ``60s`` or ``2m``; a bare number is seconds.

    None stays None. Raises click.BadParameter.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})([sm]?)", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a time: write 60s or 2m")
    return float(match[1]) * (60 if match[2] == "m" else 1)


def parts_of(_context: object, _option: object, text: str) -> tuple[str, ...]:
    """Return the PARTS in a text as ``memory,store``; () for "".

    Raises click.BadParameter.
    """
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        if part not in PARTS:
            raise click.BadParameter(f"{part!r} is none of {', '.join(PARTS)}")
    return parts


@command(
    "measure",
    "mooncake-preflight measure launch.sh",
    "mooncake-preflight measure --only registration --device mlx5_0 --page 2m",
    "mooncake-preflight measure --rehearse --scale 100 launch.sh",
    "mooncake-preflight measure --serve             # on one node, which prints what --to takes",
    "mooncake-preflight measure --to HOST:PORT/TOKEN launch.sh      # on the other",
)
@JSON
@click.option(
    "--only", "parts", metavar="PART[,PART]", default="", callback=parts_of,
    help=f"Of {', '.join(PARTS)}. Default: all; with --to transfer.",
)  # fmt: skip
@click.option(
    "--budget", "budget_seconds", metavar="TIME", callback=seconds_of,
    help="The time that measuring may take, or that --serve waits. Default: 60s. With --rehearse "
    "what a single step may take. Default: 10m.",
)  # fmt: skip
@click.option(
    "--spend", "spend_bytes", type=SIZE,
    help="The most memory that is taken at a time, and the most that is written. Default: 2gb, or "
    "half of what is free.",
)  # fmt: skip
@click.option(
    "--device", "devices", multiple=True, metavar="NAME[,NAME]",
    help="Register with these at once, as Mooncake does. Default: the launch's, or all.",
)  # fmt: skip
@click.option(
    "--page", type=click.Choice(["4k", "2m", "1g"]), default="4k", show_default=True,
    help="The pages behind the memory: the machine's smallest, or huge ones from its pool.",
)  # fmt: skip
@click.option(
    "--region", "region_bytes", type=SIZE,
    help="Size of the smallest region. Default: the launch's smallest, or 16mb.",
)  # fmt: skip
@click.option(
    "--up-to", "up_to_bytes", type=SIZE,
    help="Most of one device. Default: the launch's need and a quarter, or the host's memory.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Search although others use the device.")
@click.option("--no-save", is_flag=True, help="Do not keep the result for later checks.")
@click.option(
    "--rehearse", is_flag=True,
    help="Make the launch's allocations in place of the parts, and compare with the prediction.",
)  # fmt: skip
@click.option(
    "--scale", type=Integer(1, 1_000_000), default=1, show_default=True, metavar="N",
    help="Divide every size by N; the prediction is then made for that smaller launch.",
)  # fmt: skip
@click.option(
    "--kill", "killed", type=click.Choice(VICTIMS),
    help="In place of the parts: start a small store of the launch's kind, kill this process, and "
    "say what is lost and what comes back. Default: the parts.",
)  # fmt: skip
@click.option("--to", "peer", metavar="HOST:PORT/TOKEN", help="Transfer to another host's --serve.")
@click.option("--serve", "serving", is_flag=True, help="Be the other side, until --budget ends.")
@click.option(
    "--address", default="", metavar="ADDRESS",
    help="Of this host, for --serve. Default: by which it reaches others.",
)  # fmt: skip
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
    NumberOption(0, 3600, min_open=True), 20.0,
    "Seconds after which a file that does not answer is given up.",
)  # fmt: skip
@COLOR
@with_launch_of_installed
def measure(
    *,
    as_json: bool,
    parts: tuple[str, ...],
    budget_seconds: float | None,
    spend_bytes: int | None,
    devices: tuple[str, ...],
    page: str,
    region_bytes: int | None,
    up_to_bytes: int | None,
    force: bool,
    no_save: bool,
    rehearse: bool,
    scale: int,
    killed: str | None,
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
    and --to), put into a new store and got; each NIC registers memory; the folder of SSD
    offload is written and read. With LAUNCH (a file, or a command after --) in its sizes, by its
    protocol, devices and variables. No running service is touched; nothing is left behind.

    --only registration also finds how much memory the NICs let this user register, and which limit
    that is. --rehearse makes all the launch's allocations: every rank, store and client becomes a
    process that maps and registers what the launch would; no model is loaded. Huge pages are taken
    from those that are free; a tenth of the other memory is left alone. --kill starts
    another master and two clients, kills one process, and starts it again: half a minute.

    Exit codes: 0 measured, or rehearsed as predicted; 1 something is slower, or another thing, than
    the launch means; 2 more is registered than can be, or the rehearsal fails; 3 not measured, or
    broken off; 64 usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.base.envelope import envelope
    from preflight.base.within import save as saved
    from preflight.benchmark.measuring import measure as run
    from preflight.benchmark.measuring.measure import answer_object, answer_text
    from preflight.benchmark.probes.registration import ProbeOptions

    if serving and (peer is not None or parts or save is not None):
        raise click.UsageError("--serve takes no --to, --only or --save: it measures nothing")
    if address and not serving:
        raise click.UsageError("--address is about --serve")
    sizes = ProbeOptions(
        page, region_bytes, up_to_bytes, devices=devices, force=force, save=not no_save
    )
    searches = "registration" in parts
    if sizes != ProbeOptions() and not searches:
        flags = "--device, --page, --region, --up-to, --force and --no-save"
        raise click.UsageError(f"{flags} are about --only registration")
    other = parts or serving or peer is not None or save is not None
    if killed is not None and (rehearse or other):
        raise click.UsageError("--kill takes no --rehearse, --only, --serve, --to or --save")
    if rehearse:
        if other:
            raise click.UsageError("--rehearse takes no --only, --serve, --to or --save")
        return _rehearse(launch, python, scale, budget_seconds or 600.0, as_json, color)
    if scale != 1:
        raise click.UsageError("--scale is about --rehearse")
    budget_seconds = 60.0 if budget_seconds is None else budget_seconds
    measuring, wanted, called = run.prepare(
        launch, python, budget_seconds, spend_bytes, sizes if searches else None
    )
    if killed is not None:
        return _say_survival(run.kill(measuring, killed), as_json, called)
    if serving:

        def say_address(where: str) -> None:
            """Say what the other host's --to takes."""
            served = {"served": {"address": where, "budget_seconds": budget_seconds}}
            if as_json:
                say_answer("measure", 0, served, launch=called)
            else:
                to = f"mooncake-preflight measure --to {where}"
                say(f"{where}\nlistens there alone; on the other host, with its launch: {to}")

        run.serve(measuring, address or run.own_address(), budget_seconds, say_address)
        return 0
    only = parts or (() if peer is None else ("transfer",))
    answer = run.measure(measuring, wanted, only, peer, tokens_per_second)
    code, word = answer.exit_code, answer.status
    whole = envelope(
        "measure", code, answer_object(answer), word=word, reason=answer.reason, launch=called
    )
    if save is not None:
        saved(save, save, f"{json_text(whole)}\n".encode(), 0o644, timeout_seconds)
    if as_json:
        say_json(whole)
    else:
        say(answer_text(answer, color))
    return code


def _say_survival(result: Survival | Unknown, as_json: bool, launch: tuple[str, str] | None) -> int:
    """Print the result of ``measure --kill``; return the exit code of the command.

    Args:
        launch: Its name, and its processes in a sentence; or None.
    """
    from checks.framework.unknown import Unknown
    from preflight.base import exit_codes
    from preflight.benchmark.measuring.kills import survival_object, survival_text

    if isinstance(result, Unknown):
        code, answer, text = exit_codes.UNKNOWN, None, f"UNKNOWN: {result.reason}"
    else:
        code = exit_codes.WARN if result.costs else exit_codes.PASS
        answer, text = survival_object(result), survival_text(result)
    if as_json:
        say_answer("measure", code, answer, reason=result.reason, launch=launch)
    else:
        say(text)
    return code


def _rehearse(
    launch: LaunchWords, python: str | None, scale: int, step_seconds: float, json: bool, color: str
) -> int:
    """Rehearse a launch and print the result; return the exit code.

    Args:
        scale: Every size is divided by it.
        step_seconds: The most that one step may take.
    """
    from preflight.benchmark.rehearsal.rehearse import answer_object, answer_text, rehearse

    answer = rehearse(launch, python, scale, step_seconds)
    if json:
        body, word = answer_object(answer), answer.status
        say_answer("rehearse", answer.exit_code, body, word=word, reason=answer.reason)
    else:
        say(answer_text(answer, color))
    return answer.exit_code
