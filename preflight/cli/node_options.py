"""What the commands that ask nodes have in common on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from preflight.cli.options import (
    COLOR,
    JSON,
    Function,
    Integer,
    Option,
    gathered,
    with_options,
    with_verbosity,
)

if TYPE_CHECKING:
    from preflight.fleet.merge.collected import Shown
    from preflight.fleet.node.asked_nodes import Remote

REMOTE_COMMAND: Option = click.option(
    "--remote-command",
    default="mooncake-preflight",
    show_default=True,
    metavar="COMMAND",
    help="This program on the nodes.",
)
_REMOTE: tuple[Option, ...] = (
    REMOTE_COMMAND,
    click.option(
        "--carry",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Take this program along: where a node has none, always, never.",
    ),
    click.option(
        "--remote-python",
        default="python3",
        show_default=True,
        metavar="COMMAND",
        help="What runs the program that is taken along; 3.10 or newer.",
    ),
)
REPORTS: Option = click.option(
    "--reports", metavar="FOLDER", help="Keep each node's report there, as NODE.json."
)


def with_nodes(example: str) -> Callable[[Function], Function]:
    """Add which nodes: ``nodes``, ``nodes_files`` and ``exclude``."""
    help_ = f"As {example}, @rack1 or @slurm:partition; may be given again."
    files = "Node sets, one a line."
    return with_options(
        click.option("--nodes", multiple=True, metavar="NODESET", help=help_),
        click.option("--nodes-file", "nodes_files", multiple=True, metavar="FILE", help=files),
        click.option("--exclude", multiple=True, metavar="NODESET", help="Not these."),
    )


# How ssh logs in.
with_ssh = with_options(
    click.option("--user", metavar="NAME", help="Log in as this user."),
    click.option(
        "--ssh-options", default="", metavar="OPTIONS", help="As '-i ~/.ssh/fleet -oPort=2222'."
    ),
)
# Of --timeout, until ssh is through.
CONNECT_TIMEOUT: Option = click.option(
    "--connect-timeout",
    "connect_seconds",
    type=Integer(1, 600),
    default=10,
    show_default=True,
    help="Seconds of these until ssh is through.",
)


def with_remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add where the program is on a node, and whether it is taken along: ``remote: Remote``."""
    names = ("remote_command", "remote_python", "carry")
    return with_options(*_REMOTE)(gathered(function, "remote", _remote, *names))


def _remote(remote_command: str, remote_python: str, carry: str) -> Remote:
    from preflight.fleet.node.asked_nodes import Remote

    return Remote(remote_command, remote_python, carry)


def with_answer(*between: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add how the nodes' answer is shown: ``shown: Shown``; --help has ``between`` among them."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        names = ("reports", "as_json", "color", "verbosity")
        one = with_verbosity("What passed, too.")(gathered(function, "shown", _shown, *names))
        return with_options(REPORTS, *between, JSON, COLOR)(one)

    return decorated


def _shown(reports: str | None, as_json: bool, color: str, verbosity: int) -> Shown:
    from preflight.fleet.merge.collected import Shown

    return Shown(reports, as_json, color, verbosity)
