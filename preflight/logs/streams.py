"""Takes a log apart into the processes that wrote it: prefixes of kubectl and Compose, JSON lines.

A log without them is one process, and is passed on as it is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checks.base.regex import regex

# kubectl logs --prefix; docker compose logs; a line of a container's file below /var/log/pods.
_PREFIXES = (
    regex(r"\[pod/(?P<name>[^\]\s]{1,200})\] "),
    regex(r"(?P<name>[A-Za-z0-9][\w.-]{0,80}?) *\| "),
    regex(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] "),
)
# Lines of a block that are looked at, and the share of them that has a prefix where it is one.
_LOOKED_AT, _LEAST_SHARE = 40, 0.6
# The names of a process in journalctl -o json and in Docker's files, the best first.
_NAMES = ("CONTAINER_NAME", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER")
MOST_PROCESSES = 200
OTHERS = "others"

# The text of one process, and the number of each of its lines.
Part = tuple[str, str, "list[int] | None"]


def parts(blocks: Iterable[str]) -> Iterator[Part]:
    """Yield the lines of each block by process; a process without a name is ""."""
    names: set[str] = set()
    line = 1
    for block in blocks:
        prefix = _prefix(block)
        if prefix is None:
            yield "", block, None
            line += block.count("\n")
            continue
        texts: defaultdict[str, list[str]] = defaultdict(list)
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        name = ""
        for number, text in enumerate(block.split("\n")[:-1], line):
            if prefix == "json":
                named, text = _message(text, name)
            else:
                match = prefix.match(text)
                named = match.groupdict().get("name", "") if match else name
                text = text[match.end() :] if match else text
            name = named if named in names or len(names) < MOST_PROCESSES else OTHERS
            names.add(name)
            for each in text.split("\n"):
                texts[name].append(each)
                numbers[name].append(number)
        for name, own_lines in texts.items():
            yield name, "\n".join(own_lines) + "\n", numbers[name]
        line += block.count("\n")


def _prefix(block: str) -> Any:
    """Return the prefix of most lines in a block: an expression, "json", or None."""
    lines = [line for line in block[:20_000].split("\n")[:_LOOKED_AT] if line.strip()]
    least = _LEAST_SHARE * len(lines)
    for prefix in _PREFIXES:
        if lines and sum(prefix.match(line) is not None for line in lines) >= least:
            return prefix
    json_lines = sum(line[:1] == "{" and ('"MESSAGE"' in line or '"log"' in line) for line in lines)
    return "json" if lines and json_lines >= least else None


def _message(text: str, name: str) -> tuple[str, str]:
    """Return the process and the message of a JSON line; any other text is returned as it is."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return name, text
    if not isinstance(row, Mapping):
        return name, text
    message = row.get("MESSAGE", row.get("log", text))
    if isinstance(message, list):  # bytes that are no UTF-8
        message = bytes(each for each in message if isinstance(each, int) and 0 <= each < 256)
        message = message.decode("utf-8", "replace")
    return next((str(row[key]) for key in _NAMES if row.get(key)), ""), str(message).rstrip("\n")
