"""``mooncake-preflight fleet rails``: the reports read, the rails held against each other."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.base.output import columns, painter, say, say_json
from preflight.fleet.rails.answer import rail_answer
from preflight.fleet.reports.duplicates import settled_rows
from preflight.fleet.reports.reading import read_reports


def run_rails(paths: Sequence[str], as_json: bool, color: str, verbosity: int) -> int:
    """Print the answer; returns the exit code. Raises UsageError.

    verbosity: below 0 the verdict alone, above 0 every grid in full.
    """
    reports = read_reports(paths)
    settled = settled_rows(reports.rows)
    answer = rail_answer(settled.rows.values(), reports.unusable)
    if as_json:
        from preflight.fleet.rails.to_json import rails_object

        say_json(rails_object(answer))
    else:
        from preflight.fleet.rails.to_text import rails_text

        say(rails_text(answer, painter(color), columns(), verbosity))
    return answer.exit_code
