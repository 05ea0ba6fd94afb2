"""A node's report in what it printed, among whatever else stands there.

A log or a job's output may begin with words of a shell's profile, a prolog or a library, and end
with others; a report cut short is none.
"""

from __future__ import annotations

from typing import Any

from checks.base.unknown import Unknown

# How a report begins, whatever its version: merge names those that it does not know.
START = b'{"schema":"mooncake-preflight/node/'
# What is quoted of a text without a report: enough for the error that the program ended with.
QUOTED_BYTES = 200


def report_in(printed: bytes) -> dict[str, Any] | Unknown:
    """The last whole report in ``printed``; why there is none, with the last line that it had."""
    import json

    decoder = json.JSONDecoder()
    reason = ""
    end = len(printed)
    while (start := printed.rfind(START, 0, end)) >= 0:
        text = printed[start:].decode("utf-8", "replace")
        try:
            found, _ = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            reason = reason or f"its report breaks off after {len(printed) - start} bytes"
        else:
            if isinstance(found, dict):
                return found
        end = start
    return Unknown(reason or f"it printed no report{_last_line(printed)}")


def _last_line(printed: bytes) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return f"; its last line: {quoted(lines[-1])}" if lines else ""


def quoted(line: bytes) -> str:
    """A foreign line as a text of one line, cut where it is long."""
    text = line.decode("utf-8", "replace")
    text = "".join(sign if sign.isprintable() else " " for sign in text).strip()
    return text if len(text) <= QUOTED_BYTES else f"{text[:QUOTED_BYTES]} …"
