"""``mooncake-preflight rehearse``: the launch's allocations, made for real and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import (
    COLOR,
    JSON,
    Integer,
    NumberOption,
    timeout_option,
    with_launch_of_installed,
)

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


@command(
    "rehearse",
    "mooncake-preflight rehearse launch.sh",
    "mooncake-preflight rehearse --scale 100 --python /opt/bin/python launch.sh",
)
@JSON
@click.option(
    "--scale",
    type=Integer(1, 1_000_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Divide every size by N; the prediction is then made for that smaller launch.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The interpreter that has Mooncake. Default: the one that runs this.",
)
@timeout_option(
    NumberOption(0, 86400, min_open=True), 600.0, "Seconds after which a single step is broken off."
)
@COLOR
@with_launch_of_installed
def rehearse(
    *,
    as_json: bool,
    scale: int,
    python: str | None,
    timeout_seconds: float,
    color: str,
    launch: LaunchWords,
) -> int:
    """Make a launch's allocations with the real Mooncake, compare them with the prediction.

    Every rank, store and client of LAUNCH (a file, or a command after --) becomes a process of its
    own that maps and registers what the launch would, against a master on 127.0.0.1; a value is put
    and got; then all of it is given back. No model is loaded and nothing of the launch is executed.
    Huge pages are taken from those that are free now; a tenth of the other memory is left alone.

    Exit codes: 0 it went as predicted; 1 it starts, and not all is as it should be; 2 it fails, as
    predicted or not; 3 not rehearsed, or broken off; 64 usage error; 70 a defect of this program;
    130 interrupted.
    """
    from preflight.base.output import say, say_json
    from preflight.rehearsal.rehearse import rehearse as rehearsed

    answer = rehearsed(launch, python, scale, timeout_seconds)
    if as_json:
        from preflight.base.envelope import envelope
        from preflight.rehearsal.report import answer_object

        found, word = answer_object(answer), answer.status
        say_json(envelope("rehearse", answer.exit_code, found, word=word, reason=answer.reason))
    else:
        from preflight.rehearsal.report import answer_text

        say(answer_text(answer, color))
    return answer.exit_code
