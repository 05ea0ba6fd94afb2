"""``mooncake-preflight read``: what was understood of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import COLOR, JSON, ROOT, TIMEOUT, with_launch, with_verbosity

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


@command(
    "read",
    "mooncake-preflight read launch.sh",
    "mooncake-preflight read -v -- docker run --gpus all lmsysorg/sglang:v0.5.9 \\",
    "    python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B",
    "mooncake-preflight read --keys prefill.sh decode.sh",
)
@click.option(
    "--record", is_flag=True, help="Print the launch as it was read, for check on another host."
)
@click.option(
    "--keys",
    is_flag=True,
    help="The keys of what stores KV cache, and whether two processes, or two files, ever meet.",
)
@JSON
@TIMEOUT
@ROOT
@COLOR
@with_verbosity("Every setting, with where it was written; -vv: the defaults too.")
@with_launch
def read(
    *,
    record: bool,
    keys: bool,
    as_json: bool,
    timeout_seconds: float,
    root: str,
    color: str,
    verbosity: int,
    launch: LaunchWords,
) -> int:
    """Say what a launch starts: every process, its settings, and what was not read.

    LAUNCH is what `check` takes, and it is read by the same code. Nothing of it is executed.

    With --record, what was understood of LAUNCH is printed as JSON, without secrets: a launch to
    every command, for a host that has not its files, or cannot read scripts. What it leaves open is
    that host's own.

    With --keys, every two processes of LAUNCH are compared; of two files, each process of one with
    each of the other. Their keys are equal, never equal, equal for different bytes, or this is not
    known; the reason is printed.

    Exit codes: 0 all of it was read; 3 something was not, and is named; 64 usage error; 70 a defect
    of this program. With --keys: 0 all keys are equal, or in stores of their own; 1 two never meet,
    or use one key for different bytes; 3 for two it is not known.
    """
    if record:
        from preflight.base.output import say
        from preflight.inputs.recorded_launch import recorded_launch

        said = recorded_launch(launch)
        if said is None:
            raise click.UsageError(
                "--record is about a launch: give a script, or a command after --"
            )
        say(said.decode())
        return 0
    if keys:
        from preflight.cli.keys import print_keys

        return print_keys(launch, root, timeout_seconds, as_json, color)
    from checks.capture.secrets import public
    from preflight.base.envelope import envelope
    from preflight.base.output import columns, painter, say, say_json
    from preflight.base.within import within
    from preflight.inputs.host_source import open_host
    from preflight.reading.answer import reading_object, reading_text
    from preflight.reading.understood import read_whole

    host = open_host(root, timeout_seconds)
    name = launch.words[0] if len(launch.words) == 1 else "the launch, or a file that it names"
    reading = within(timeout_seconds, name, lambda: read_whole(launch, host))
    code = 3 if reading.unread else 0
    if as_json:
        unread = [f"{each.what}, {each.origin}: {each.why}" for each in reading.unread]
        answer = envelope(
            "launch",
            code,
            public(reading_object(reading)),
            word="unread" if reading.unread else "read",
            reason=next(iter(unread), None),
            launch=(reading.name, reading.sentence),
        )
        say_json(answer)
    else:
        say(public(reading_text(reading, painter(color), columns(), verbosity)))
    return code
