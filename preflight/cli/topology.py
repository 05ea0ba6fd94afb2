"""``mooncake-preflight topology``: what sits where, and which NIC Mooncake takes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command, say_answer
from preflight.cli.options import COLOR, JSON, ROOT, TIMEOUT, with_launch

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords


@command(
    "topology", "mooncake-preflight topology", "mooncake-preflight topology --measure launch.sh"
)
@JSON
@click.option(
    "--measure", is_flag=True,
    help="Ask the installed Mooncake too, in a process of its own, for at most a minute.",
)  # fmt: skip
@click.option("--ascii", "plain", is_flag=True, help="Draw with ASCII characters alone.")
@TIMEOUT
@ROOT
@COLOR
@with_launch
def topology(
    *,
    as_json: bool,
    measure: bool,
    plain: bool,
    timeout_seconds: float,
    root: str,
    color: str,
    launch: LaunchWords,
) -> int:
    """Draw nodes, GPUs and NICs, how far they are apart, and which NIC Mooncake takes for what.

    With a launch, shows also which process uses what, and only the launch's devices count. What
    Mooncake will choose follows from Mooncake's rule; --measure asks the library itself.

    Exit codes: 0 Mooncake takes the nearest NICs; 1 something is not as it should be; 2 a device of
    the launch is missing, or none is left; 3 not known, or not measured; 64 usage error; 70 a
    defect of this program.
    """
    from checks.host_snapshot.secrets import public
    from preflight.base.output import columns, drawing_encoding, painter, say
    from preflight.report.topology.answer import topology_answer
    from preflight.report.topology.report import answer_text, draws_lines
    from preflight.verdict.report import EXIT_CODES

    answer = topology_answer(launch, root, timeout_seconds, measure, short=not as_json)
    code = EXIT_CODES[answer.status]
    if as_json:
        from preflight.report.topology.report import answer_object

        body, word = public(answer_object(answer)), answer.status.value
        say_answer("topology", code, body, word=word, started=(answer.source, answer.processes))
    else:
        plain = plain or not draws_lines(drawing_encoding())
        say(public(answer_text(answer, painter(color), columns(), plain)))
    return code
