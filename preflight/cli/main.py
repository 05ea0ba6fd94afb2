"""``mooncake-preflight``: is this machine able to run this launch?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import click

from mooncake_preflight import answering
from preflight.base.command_frame import own_words, requested_answers, run_command
from preflight.base.exit_codes import DEFECT, USAGE
from preflight.base.output import output_to, say, say_json
from preflight.base.program import program_version
from preflight.base.usage_error import UsageError
from preflight.cli.commands import CONTEXT, PROTOCOLS, LazyGroup, examples_text, say_answer

NAME = "mooncake-preflight"

# Each is a module of its own: --help of one must not pay for the others.
LATER = {
    "Start here": {
        "read": "preflight.cli.read:read",
        "check": "preflight.cli.check:check",
        "explain": "preflight.cli.explain:explain",
        "fit": "preflight.cli.fit:fit",
    },
    "Set this host, and start the server": {
        "plan": "preflight.cli.plan:plan",
        "apply": "preflight.cli.plan:apply",
        "exec": "preflight.cli.exec:exec_",
    },
    "Look closer": {
        "capacity": "preflight.cli.capacity:capacity",
        "trace": "preflight.cli.trace:trace",
        "topology": "preflight.cli.topology:topology",
        "diff": "preflight.cli.diff:diff",
        "measure": "preflight.cli.measure:measure",
        "observe": "preflight.cli.observe:observe",
    },
    "Other machines": {
        "fleet": "preflight.cli.fleet:fleet",
        "capture": "preflight.cli.capture:capture",
    },
    "For scripts": {
        "schema": "preflight.cli.scripts:schema",
        "bundle": "preflight.cli.scripts:bundle",
        "completion": "preflight.cli.scripts:completion",
    },
}
# Options with which a command gives another answer, of a schema of its own.
ANSWERS = {"--advisories": "advisories", "--keys": "keys", "--rehearse": "rehearse"}
# Those whose errors are of a schema of their own; the others speak as check does.
SCHEMAS = {
    **{name: name for name in ("apply", "capacity", "capture", "diff", "fit", "fleet", "plan")},
    **{name: name for name in ("measure", "observe", "topology", "trace")},
    "explain": "explain-log",
    "read": "launch",
}


@click.group(
    cls=LazyGroup,
    later=LATER,
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight check launch.sh",
        "mooncake-preflight check --root demo:h800",
        "mooncake-preflight explain 'Failed to register memory'",
    ),
)
@click.version_option(program_version(), "--version")
def command() -> None:
    """Know before the launch whether a host can run SGLang HiCache with Mooncake."""


def main() -> None:
    """Run the console script: every way out has its exit code, and no traceback."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run with ``arguments``; returns the exit code.

    ``help COMMAND`` is ``COMMAND --help``.
    """
    if next(iter(arguments), "") == "help":
        arguments = [*arguments[1:], "--help"]
    return run_command(command, NAME, arguments, partial(refuse, arguments))


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """Say in each format asked for that the command gave no answer; return the exit code, which an
    exit protocol may change.

    One format at most goes to standard output. Files are written only for usage errors and defects.
    """
    from preflight.verdict.report import refusal_code

    argv = own_words(arguments)
    answers = requested_answers(argv)
    protocol = next((name for name, _ in answers if name in PROTOCOLS), "native")
    code = refusal_code(exit_code, protocol)
    printed = [answer for answer in answers if answer[1] is None][:1]
    for name, path in printed + [answer for answer in answers if answer[1] is not None]:
        # Where it was interrupted, no file is opened any more.
        if path is None or exit_code in (USAGE, DEFECT):
            # A UsageError is what was told already, or stands behind it.
            with suppress(UsageError), output_to(path):
                _refuse_as(name, argv, code, message, protocol)
    return code


def _refuse_as(name: str, argv: Sequence[str], code: int, message: str, protocol: str) -> None:
    """Print in the format ``name`` that there is no answer.

    Formats that only persons read print nothing, except HTML for check.
    """
    from preflight.verdict.report import error_junit, error_object, refusal_line

    if name == "json":
        asked_for = [schema for option, schema in ANSWERS.items() if option in argv]
        schema_name = next(iter(asked_for), SCHEMAS.get(next(iter(argv), "")))
        if schema_name is None:
            say_json(error_object(protocol, code, message, _command_path(argv)))
        else:
            path = _command_path(argv)
            say_answer(schema_name, code, word="error", reason=message, command=path)
    elif name == "junit":
        say(error_junit(message).rstrip("\n"))
    elif name == "html" and argv[0] == "check":
        from preflight.cli.check import page_stamp
        from preflight.report.pictures.check_page import error_page

        say(error_page(message, page_stamp()).rstrip("\n"))
    elif (line := refusal_line(message, name)) is not None:
        answering()
        say(line)


def _command_path(argv: Sequence[str]) -> str:
    """Return the command that ``argv`` begins with, as ``fleet check``, else the program's name."""
    reached: click.Command | None = command
    for count, word in enumerate(argv):
        if isinstance(reached, click.Group):
            reached = reached.get_command(click.Context(reached), word)
        if not isinstance(reached, click.Group):
            return " ".join(argv[: count + (reached is not None)]) or NAME
    return " ".join(argv) or NAME


if __name__ == "__main__":
    main()
