"""``mooncake-preflight fleet rails``: which NIC reaches which, from the nodes' reports."""

from __future__ import annotations

import click

from preflight.cli.commands import command
from preflight.cli.options import COLOR, FILE_TIMEOUT, JSON, with_verbosity


@command("rails", "mooncake-preflight fleet rails reports.jsonl")
@JSON
@COLOR
@with_verbosity("Also a table for every two kinds of nodes.")
@FILE_TIMEOUT
@click.argument("reports", nargs=-1, required=True)
def rails(*, reports: tuple[str, ...], as_json: bool, color: str, verbosity: int) -> int:
    """Say which NIC of one node reaches which of another, from the nodes' reports.

    REPORTS are what fleet merge takes. Nodes whose ports lie in the same networks are one kind;
    kinds are compared by addresses, prefixes, GID types and routes. Nothing is sent: whether
    packets get through is what fleet pair-listen and pair-connect try.

    Exit codes: 0 all NICs that Mooncake connects can reach each other; 1 some cannot; 2 some nodes
    do not reach each other at all; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.base.output import columns, painter, say, say_json
    from preflight.fleet.rails.answer import rail_answer, rails_object, rails_text
    from preflight.fleet.reports.reading import read_reports
    from preflight.fleet.reports.rows import settled
    from preflight.fleet.reports.sources import given_reports

    read = read_reports(given_reports(reports))
    answer = rail_answer(settled(read.rows).rows.values(), read.unusable)
    if as_json:
        from preflight.base.envelope import envelope

        reason = f"{answer.status.upper()}: {answer.said}"
        found = rails_object(answer)
        say_json(envelope("rails", answer.exit_code, found, word=answer.status, reason=reason))
    else:
        say(rails_text(answer, painter(color), columns(), verbosity))
    return answer.exit_code
