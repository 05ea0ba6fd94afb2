"""``mooncake-preflight fleet rails``: which NIC reaches which, from the nodes' reports."""

from __future__ import annotations

import click

from preflight.cli.commands import command
from preflight.cli.options import COLOR, FILE_TIMEOUT, JSON, with_verbosity


@command("rails", "mooncake-preflight fleet rails reports.jsonl")
@JSON
@COLOR
@with_verbosity("The whole table.")
@FILE_TIMEOUT
@click.argument("reports", nargs=-1, required=True)
def rails(*, reports: tuple[str, ...], as_json: bool, color: str, verbosity: int) -> int:
    """Say which node's NIC is in another network than the same NIC of the others.

    REPORTS are what fleet merge takes. Ports of one name are compared by addresses, prefixes, GID
    types and routes. Nothing is sent: whether packets get through is what measure --to tries.

    Exit codes: 0 each port reaches the same port of the others; 1 some cannot; 2 some node is not
    reached at all; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.base.output import painter, say, say_json
    from preflight.fleet.rails import rail_answer, rails_object, rails_text
    from preflight.fleet.reports.reading import read_reports
    from preflight.fleet.reports.rows import settled
    from preflight.fleet.reports.sources import given_reports

    read = read_reports(given_reports(reports))
    answer = rail_answer(settled(read.rows).rows.values(), read.unusable)
    if as_json:
        from preflight.base.envelope import envelope

        found, word = rails_object(answer), answer.status
        reason = f"{word.upper()}: {answer.said}"
        say_json(envelope("rails", answer.exit_code, found, word=word, reason=reason))
    else:
        say(rails_text(answer, painter(color), verbosity))
    return answer.exit_code
