"""What the commands that ask nodes have in common on the command line."""

from __future__ import annotations

import click

from preflight.cli.launch_options import Command, Option, with_options

JSON: Option = click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
_REMOTE: tuple[Option, ...] = (
    click.option(
        "--remote-command",
        default="mooncake-preflight",
        show_default=True,
        metavar="COMMAND",
        help="This program on the nodes.",
    ),
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
_SSH: tuple[Option, ...] = (
    click.option("--user", metavar="NAME", help="Log in as this user."),
    click.option(
        "--ssh-options", default="", metavar="OPTIONS", help="As '-i ~/.ssh/fleet -oPort=2222'."
    ),
)
_REPORT: tuple[Option, ...] = (
    click.option(
        "--reports", metavar="FOLDER", help="Keep each node's report there, as NODE.json."
    ),
    click.option(
        "--ignore",
        multiple=True,
        metavar="ID=REASON",
        help="Show what this check finds, and do not count it.",
    ),
)


def with_remote(function: Command) -> Command:
    """Where the program is on a node, and whether it is taken along."""
    return with_options(function, _REMOTE)


def with_ssh(function: Command) -> Command:
    """How ssh logs in."""
    return with_options(function, _SSH)


def with_reports(function: Command) -> Command:
    """What is kept of the nodes' reports, and what of them does not count."""
    return with_options(function, _REPORT)
