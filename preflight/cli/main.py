"""``mooncake-preflight``: is this machine able to run this launch?"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import click

from preflight.base.command_frame import own_words, run_command
from preflight.base.output import say, say_json
from preflight.cli.launch_options import (
    COLOR,
    ROOT,
    TIMEOUT,
    examples,
    launch_words,
    refusing_usage,
    with_launch,
)
from preflight.cli.lazy_commands import LazyGroup

NAME = "mooncake-preflight"
# As preflight.check.exit_protocols, which is imported where it is used.
PROTOCOLS = ("native", "nagios", "npd", "slurm-prolog", "k8s")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")


# The families of commands that have a package of their own.
LATER = {
    "plan": "preflight.cli.plan:plan",
    "apply": "preflight.cli.plan:apply",
    "probe": "preflight.cli.probe:probe",
    "rehearse": "preflight.cli.rehearse:rehearse",
    "topology": "preflight.cli.topology:topology",
    "capacity": "preflight.cli.capacity:capacity",
    "fit": "preflight.cli.fit:fit",
    "fleet": "preflight.cli.fleet:fleet",
}
# Those whose JSON is of a schema of its own, on every way out; the others speak as check does.
SCHEMAS = {
    "capacity": "mooncake-preflight/capacity/v1",
    "explain": "mooncake-preflight/explain-log/v1",
    "facts": "mooncake-preflight/facts/v1",
    "fit": "mooncake-preflight/fit/v1",
    "fleet": "mooncake-preflight/fleet/v1",
    "plan": "mooncake-preflight/plan/v1",
    "probe": "mooncake-preflight/probe-registration/v1",
    "rehearse": "mooncake-preflight/rehearse/v1",
    "topology": "mooncake-preflight/topology/v1",
}


@click.group(cls=LazyGroup, later=LATER, context_settings=CONTEXT)
@click.version_option(None, "--version", package_name="mooncake-preflight")
def command() -> None:
    """Know before the launch whether a host can run SGLang HiCache with Mooncake."""


@command.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight check launch.sh",
        "mooncake-preflight check -- python3 -m sglang.launch_server --tp 8 ...",
        "mooncake-preflight check --root host.tar.gz --skip 'pci.*' launch.sh",
    ),
)
@JSON
@click.option("--only", multiple=True, metavar="GLOB", help="These checks alone, as 'rdma.*'.")
@click.option("--skip", multiple=True, metavar="GLOB", help="All but these.")
@click.option(
    "--ignore",
    multiple=True,
    metavar="ID=REASON",
    help="Show what this check finds, and do not count it.",
)
@TIMEOUT
@ROOT
@click.option(
    "--exit-protocol",
    "protocol",
    type=click.Choice(PROTOCOLS),
    default="native",
    show_default=True,
    help="Exit code and output as these expect them.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["fail", "unknown", "warn"]),
    help="What npd, slurm-prolog (default: fail) and k8s (default: unknown) take as a no.",
)
@click.option("--junit", metavar="FILE", help="JUnit XML too; - prints it in place of the text.")
@click.option("--html", metavar="FILE", help="A page with pictures too; - prints it instead.")
@click.option("--memory-map", is_flag=True, help="Draw where each NUMA node's memory goes, too.")
@click.option("--ascii", "plain", is_flag=True, help="Draw it with ASCII characters alone.")
@COLOR
@click.option("-q", "--quiet", count=True, help="The verdict alone.")
@click.option("-v", "--verbose", count=True, help="What passed and what was skipped, too.")
@with_launch
def check(**options: Any) -> int:
    """Hold a launch against this host, and say what to mend.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Nothing of it is executed. Without it, the host alone is checked.

    Exit codes: 0 pass; 1 warn: it starts, something is not as it should be; 2 fail: it will not
    start, or will not last; 3 unknown: what decides cannot be read; 64 usage error; 70 a defect of
    this program.
    """
    from preflight.check.exit_protocols import YES_OR_NO
    from preflight.cli.check import CheckRequest, run_check

    protocol, fail_on, junit = options["protocol"], options["fail_on"], options["junit"]
    if fail_on is not None and protocol not in YES_OR_NO:
        raise click.UsageError(
            f"--fail-on is for {', '.join(YES_OR_NO)}: {protocol} has an exit code for each status"
        )
    if junit == "-" and options["as_json"]:
        raise click.UsageError(
            "--json and --junit - both take standard output: give --junit a file"
        )
    if options["html"] == "-" and (options["as_json"] or junit == "-"):
        other = "--json" if options["as_json"] else "--junit -"
        raise click.UsageError(
            f"{other} and --html - both take standard output: give --html a file"
        )
    if options["plain"] and not options["memory_map"]:
        raise click.UsageError("--ascii is for --memory-map: give both")
    if options["memory_map"] and (
        options["as_json"] or "-" in (junit, options["html"]) or protocol not in ("native", "k8s")
    ):
        raise click.UsageError(
            "--memory-map is drawn below the text: leave out --json, --junit -, --html - and "
            "protocols of one line"
        )
    request = CheckRequest(
        launch_words(options),
        options["root"],
        options["only"],
        options["skip"],
        options["ignore"],
        options["timeout_seconds"],
        options["as_json"],
        protocol,
        fail_on,
        junit,
        options["color"],
        options["verbose"] - options["quiet"],
        options["html"],
        options["memory_map"],
        options["plain"],
    )
    return int(refusing_usage(run_check, request))


@command.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight facts",
        "mooncake-preflight facts --json --root host.tar.gz",
    ),
)
@JSON
@TIMEOUT
@ROOT
@with_launch
def facts(**options: Any) -> int:
    """Print what is read of this host, and why what is not known is not.

    With a launch, what it names is looked at too: its services, ports and paths.
    """
    from preflight.cli.facts import run_facts

    code = refusing_usage(
        run_facts,
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        options["as_json"],
    )
    return int(code)


@command.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight capture host.tar.gz launch.sh",
        "ssh gpu012 mooncake-preflight capture - > gpu012.tar.gz",
    ),
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--keep-names", is_flag=True, help="Host and user names and addresses as they are.")
@TIMEOUT
@ROOT
@with_launch
def capture(**options: Any) -> int:
    """Save what the checks read of this host in FILE, a .tar.gz for check --root FILE.

    With a launch, that too, without its secrets: check --root FILE then needs no other.
    """
    from preflight.cli.capture import run_capture

    code = refusing_usage(
        run_capture,
        options["file"],
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        options["keep_names"],
    )
    return int(code)


@command.command(
    "exec",
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight exec -- python3 -m sglang.launch_server --tp 8 ...",
        "MOONCAKE_PREFLIGHT_MODE=warn mooncake-preflight exec -- python3 -m ...",
    ),
)
@click.option(
    "--fail-on",
    type=click.Choice(["fail", "unknown", "warn"]),
    default="fail",
    show_default=True,
    help="From which verdict on the command is not started.",
)
@click.option(
    "--apply-env", is_flag=True, help="Set the variables that findings want set, and check again."
)
@click.option("--report", metavar="FILE", help="The JSON of the check, whatever it says.")
@TIMEOUT
@with_launch
def exec_(**options: Any) -> int:
    """Check the command after --, then become it; refuse with exit code 78 where it would fail.

    The process keeps its id: signals and exit codes are the command's own. What the check has to
    say goes to standard error. MOONCAKE_PREFLIGHT_MODE: enforce (the default), warn (say it, and
    start), off (start).
    """
    from preflight.cli.exec import ExecRequest, run_exec

    words = launch_words(options)
    if not words.words:
        raise click.UsageError("give the command after --, as: exec -- python3 -m ...")
    request = ExecRequest(
        words.words,
        words._replace(is_command=True),
        options["fail_on"],
        options["apply_env"],
        options["report"],
        options["timeout_seconds"],
    )
    return int(refusing_usage(run_exec, request))


@command.command("list", context_settings=CONTEXT)
def list_checks() -> int:
    """Print the id of every check, and what it asks."""
    from preflight.cli.explain import list_text

    say(list_text())
    return 0


@command.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight explain memlock.limit",
        "mooncake-preflight explain --log server.log",
        "journalctl -u sglang | mooncake-preflight explain",
    ),
)
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--log", metavar="FILE", help="A server's log; - is standard input.")
@JSON
@COLOR
def explain(id_: str | None, log: str | None, as_json: bool, color: str) -> int:
    """Say what a check or a rule is about; or, given a log, what ended the server.

    explain ID prints the page of a check or rule. explain --log FILE, or explain < server.log,
    finds the lines of SGLang, Mooncake and the kernel that are known, the likeliest cause first.
    Exit codes with a log: 0 nothing known in it; 1 warnings alone; 2 the cause of a failure.
    """
    if (id_ is None) is (log is None) and (id_ is not None or sys.stdin.isatty()):
        raise click.UsageError("give the ID of a check (list prints them), or a log: --log FILE")
    if id_ is not None:
        if as_json:
            raise click.UsageError("--json is for a log; the page of an ID is text")
        from preflight.cli.explain import explain_text

        say(refusing_usage(explain_text, id_))
        return 0
    from preflight.cli.explain import explain_log_file

    return int(refusing_usage(explain_log_file, log or "-", as_json, color))


def main() -> None:
    """The console script: every way out has its exit code, and no traceback."""
    # A process that lives this short has nothing to collect, and looking costs a tenth of it.
    gc.disable()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run with ``arguments``; returns the exit code."""

    def refused(exit_code: int, message: str) -> int:
        return refuse(arguments, exit_code, message)

    return run_command(command, NAME, arguments, refused)


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """The object, the line and the exit code that were asked for, where there is no answer."""
    from preflight.check.exit_protocols import refusal_code, refusal_line

    words = own_words(arguments)
    asked = _value(words, "--exit-protocol")
    protocol = asked if asked in PROTOCOLS else "native"
    code = refusal_code(exit_code, protocol)
    if "--json" in words or (words[:1] == ("plan",) and _value(words, "--format") == "json"):
        own = SCHEMAS.get(next(iter(words), ""))
        if own is not None:
            from preflight.base.error_object import error_object as own_error

            say_json(own_error(own, exit_code, message))
            return exit_code
        from preflight.check.to_json import error_object

        say_json(error_object(protocol, code, message))
        return code
    line = refusal_line(message, protocol)
    if line is not None:
        say(line)
    return code


def _value(words: Sequence[str], option: str) -> str:
    """What ``option`` was given, "" for nothing: the rest of the command line cannot be read."""
    found = ""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else next(iter(words[number + 1 :]), "")
    return found


if __name__ == "__main__":
    main()
