"""What the commands that ask nodes have in common on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from preflight.cli.formats import with_formats
from preflight.cli.options import (
    COLOR,
    Integer,
    NumberOption,
    Option,
    gathered,
    timeout_option,
    with_options,
    with_verbosity,
)

if TYPE_CHECKING:
    from preflight.fleet.merge.command import Shown
    from preflight.fleet.remote.program import Program, SshNodes

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_REMOTE: tuple[Option, ...] = (
    click.option(
        "--remote-command", default="mooncake-preflight", show_default=True, metavar="COMMAND",
        help="This program on the nodes.",
    ),
    click.option(
        "--carry", type=click.Choice(["auto", "always", "never"]), default="auto",
        show_default=True, help="Take this program along: where a node has none, always, never.",
    ),
    click.option(
        "--remote-python", default="python3", show_default=True, metavar="COMMAND",
        help="What runs the program that is taken along; 3.10 or newer.",
    ),
)  # fmt: skip
FANOUT: Option = click.option(
    "--fanout", type=Integer(1, 4096), help="Nodes at a time. Default: ClusterShell's, 64."
)
REPORTS: Option = click.option(
    "--reports", metavar="FOLDER", help="Keep each node's report there, as NODE.json."
)


def with_ssh_nodes(example: str, timeout: str, fanout: Option | None = None) -> Decorator:
    """Add the options for nodes and for ssh: ``where: SshNodes``.

    example: a node set. timeout: what --timeout is.
    """
    nodes = f"As {example}, @rack1 or @slurm:partition; may be given again."
    files = "Node sets, one a line."
    options = (
        click.option("--nodes", multiple=True, metavar="NODESET", help=nodes),
        click.option("--nodes-file", "nodes_files", multiple=True, metavar="FILE", help=files),
        click.option("--exclude", multiple=True, metavar="NODESET", help="Leave these out."),
        timeout_option(NumberOption(1, 3600), 60.0, timeout),
        click.option(
            "--connect-timeout", "connect_seconds", type=Integer(1, 600),
            help="Seconds of --timeout in which ssh has to connect. Default: 10, or half of it.",
        ),
        *([] if fanout is None else [fanout]),
        click.option("--user", metavar="NAME", help="Log in as this user."),
        click.option(
            "--ssh-options", default="", metavar="OPTIONS",
            help="For ssh, as '-i ~/.ssh/fleet -oPort=2222'.",
        ),
    )  # fmt: skip
    which = ("nodes", "nodes_files", "exclude")
    names = [*which, "timeout_seconds", "connect_seconds", "user", "ssh_options"]
    names += [] if fanout is None else ["fanout"]
    return lambda function: with_options(*options)(gathered(function, "where", _where, *names))


# Seconds in which ssh connects, where nobody says another number and --timeout leaves so many.
_CONNECT_SECONDS = 10


def _where(connect_seconds: int | None, timeout_seconds: float, **options: Any) -> SshNodes:
    """Return the nodes; without --connect-timeout ssh gets 10 s, or half of --timeout."""
    from preflight.fleet.remote.program import SshNodes

    if connect_seconds is None:
        connect_seconds = max(1, min(_CONNECT_SECONDS, int(timeout_seconds / 2)))
    options = {"fanout": None, **options, "timeout_seconds": timeout_seconds}
    return SshNodes(connect_seconds=connect_seconds, **options)


def with_remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the program on a node: ``program: Program``."""
    names = ("remote_command", "remote_python", "carry")
    return with_options(*_REMOTE)(gathered(function, "program", _program, *names))


def _program(remote_command: str, remote_python: str, carry: str) -> Program:
    from preflight.fleet.remote.program import Program, option_words

    give = "the program's path on the nodes"
    words = option_words("--remote-command", remote_command, give)
    return Program(words, remote_python, carry)


def with_answer(*between: Option) -> Decorator:
    """Add how the nodes' answer is shown: ``shown: Shown``; --help has ``between`` among them."""

    names = ("reports", "answers", "color", "verbosity")
    options = with_options(REPORTS, *between, with_formats("text", "json", "html"), COLOR)
    verbosity = with_verbosity("What passed, too.")
    return lambda function: options(verbosity(gathered(function, "shown", _shown, *names)))


def _shown(**options: Any) -> Shown:
    from preflight.fleet.merge.command import Shown

    return Shown(**options)
