"""Which checks are made, and which findings count: ids, patterns and waivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from preflight.cli.commands import FileName, taking
from preflight.cli.options import FILE, Context, Parameter

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CheckId(FileName):
    """The id of a check or rule, or a pattern; ``or_file``: or a file's name."""

    name = "id"

    def __init__(self, or_file: bool = False) -> None:
        self._or_file = or_file

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the ids that a word may become; with ``or_file`` also the files."""
        from click.shell_completion import CompletionItem

        from preflight.verdict.catalogue import catalogue

        items = [CompletionItem(id_) for id_ in catalogue().ids if id_.startswith(incomplete)]
        if not self._or_file:
            return items
        if not items:
            return super().shell_complete(ctx, param, incomplete)
        from glob import escape, glob

        return items + [CompletionItem(name) for name in glob(f"{escape(incomplete)}*")]


class WaiverText(CheckId):
    """ID=REASON, as a Waiver."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        from preflight.command_inputs.launch_words import Waiver

        check, _, reason = value.partition("=")
        # A waiver without a reason says so, in the place where the reason would stand.
        return Waiver(check, reason.strip() or "no reason given")


# Which checks are made, and what of them is waived: ``chosen: Chosen``.
with_checks = taking(
    "chosen",
    "preflight.command_inputs.launch_words:Chosen",
    click.option(
        "--only", type=CheckId(), multiple=True, metavar="GLOB",
        help="Make only these checks, as 'rdma.*'; may be given again.",
    ),
    click.option(
        "--skip", type=CheckId(), multiple=True, metavar="GLOB",
        help="Leave out these checks; may be given again.",
    ),
    click.option(
        "--ignore", type=WaiverText(), multiple=True, metavar="ID=REASON",
        help="Show what this check finds, and do not count it.",
    ),
    click.option(
        "--waivers", type=FILE, metavar="FILE",
        help="The same from a file, each with a reason and a last day.",
    ),
)  # fmt: skip
