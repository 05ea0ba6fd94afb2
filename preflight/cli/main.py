"""``mooncake-preflight``: is this machine able to run this launch?"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from mooncake_preflight import answering
from preflight.base.command_frame import own_words, run_command, value_of
from preflight.base.output import say, say_json
from preflight.base.program import program_version
from preflight.cli.commands import CONTEXT, LazyGroup, examples_text

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
        "apply": "preflight.cli.apply:apply",
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
# What somebody types for a command that there is not -> what to type.
GONE = {
    "advisories": "the known problems are: mooncake-preflight explain --advisories [LAUNCH]",
    "demo": "the recorded host is --root demo:h800, as in: check --root demo:h800",
    "facts": "what is read of a host is saved by: mooncake-preflight capture -",
    "keys": "the keys of a launch are: mooncake-preflight read --keys LAUNCH",
    "probe": "how much the NICs let be registered: mooncake-preflight measure --only registration",
    "rehearse": "a launch is rehearsed by: mooncake-preflight measure --rehearse LAUNCH",
    "list": "all checks are listed by: mooncake-preflight explain",
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
    gone=GONE,
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
    """Run with ``arguments``; returns the exit code. ``help COMMAND`` is ``COMMAND --help``."""
    if next(iter(arguments), "") == "help":
        arguments = [*arguments[1:], "--help"]

    def refused(exit_code: int, message: str) -> int:
        return refuse(arguments, exit_code, message)

    return run_command(command, NAME, arguments, refused)


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """Print the object or line that was asked for, where there is no answer.

    Returns the exit code.
    """
    from preflight.check.forms import PROTOCOLS, refusal_code, refusal_line

    words = own_words(arguments)
    asked = value_of(words, "--exit-protocol")
    protocol = asked if asked in PROTOCOLS else "native"
    code = refusal_code(exit_code, protocol)
    if "--json" in words or (words[:1] == ("plan",) and value_of(words, "--format") == "json"):
        asked_for = [schema for option, schema in ANSWERS.items() if option in words]
        own = next(iter(asked_for), SCHEMAS.get(next(iter(words), "")))
        if own is None:
            from preflight.check.forms import error_object

            say_json(error_object(protocol, code, message, _path(words)))
            return code
        from preflight.base.envelope import envelope

        path = _path(words)
        say_json(envelope(own, exit_code, word="error", reason=message, command=path))
        return exit_code
    line = refusal_line(message, protocol)
    if line is not None:
        answering()
        say(line)
    return code


def _path(words: Sequence[str]) -> str:
    """Return the command that ``words`` begin with; the program's own name where they do not."""
    found: click.Command | None = command
    for count, word in enumerate(words):
        if isinstance(found, click.Group):
            found = found.get_command(click.Context(found), word)
        if not isinstance(found, click.Group):
            return " ".join(words[: count + (found is not None)]) or NAME
    return " ".join(words) or NAME


if __name__ == "__main__":
    main()
