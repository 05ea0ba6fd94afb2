"""``mooncake-preflight list`` and ``explain``: what there is to find, from the declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.base.output import columns
from preflight.base.usage_error import UsageError
from preflight.check.catalogue import catalogue
from preflight.check.page_text import as_text, check_page, rule_page
from preflight.check.selection import nearest

if TYPE_CHECKING:
    from typing import BinaryIO


def list_text() -> str:
    """Every id with its question or finding, one a line: host, launch, fleet, rules."""
    every = catalogue()
    lines = [(check.id, check.page.asks) for check in every.checks.values()]
    lines += [(rule.id, f"finds {rule.finds}") for rule in every.rules]
    width = max(len(id_) for id_, _ in lines)
    return "\n".join(f"{id_:<{width}}  {asks}" for id_, asks in lines)


def explain_text(id_: str) -> str:
    """The page of a check or rule. Raises UsageError for an id that there is not."""
    every = catalogue()
    if id_ in every.checks:
        return as_text(check_page(every.checks[id_]), columns())
    for rule in every.rules:
        if rule.id == id_:
            return as_text(rule_page(rule), columns())
    raise UsageError(f"{id_}: no check or rule has this id{nearest(id_, every.ids)}")


def explain_log_file(path: str, as_json: bool, color: str) -> int:
    """Print what is known of a log; returns 0, 1 or 2. Raises UsageError where it is not there."""
    import sys

    from preflight.base.output import columns, painter, say, say_json
    from preflight.logs.explain import (
        LogReading,
        explanations_object,
        explanations_text,
        read_log,
    )
    from preflight.logs.patterns import Stage
    from preflight.logs.text import Bounded, read_blocks, why_no_log

    def read(stream: BinaryIO) -> LogReading:
        why = why_no_log(stream.fileno())
        if why:
            raise UsageError(f"{'standard input' if path == '-' else f'--log {path}'}: {why}")
        bounded = Bounded(stream)
        return read_log(read_blocks(bounded))._replace(whole=not bounded.cut)

    try:
        if path == "-":
            reading = read(sys.stdin.buffer)
        else:
            with open(path, "rb") as file:
                reading = read(file)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--log {path}: {reason}") from None
    stages = {each.stage for each in reading.explanations}
    code = 2 if stages - {Stage.WARNING} else len(stages)
    if as_json:
        say_json(explanations_object(reading, code))
    else:
        say(explanations_text(reading, painter(color), columns()), color=True)
    return code
