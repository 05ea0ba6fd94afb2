"""What ``--json`` says, as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from preflight.verdict.report import fold

Json = dict[str, Any]


def subject(row: Mapping[str, Any]) -> str:
    """The subjects of a finding as one text, as check folds them."""
    return fold([one["name"] for one in row["subjects"]])


def told(row: Mapping[str, Any], key: str) -> str:
    """The text of ``have`` or ``need``; "" where there is none."""
    return str(row[key]["text"]) if row[key] else ""


def lines(row: Mapping[str, Any]) -> list[str]:
    """The lines of what mends it."""
    return [one["text"] for one in row["actions"]]


def in_texts(row: Mapping[str, Any]) -> Json:
    """A finding with its subjects, amounts and actions as texts."""
    amounts = {key: told(row, key) for key in ("have", "need")}
    return {**row, **amounts, "subject": subject(row), "commands": lines(row)}


def flat(found: Mapping[str, Any]) -> Json:
    """The keys of the answer beside those of its envelope, with its own word for how it went."""
    own = found["answer"] or {}
    word = {"outcome": found["status"]}
    return {**{key: found[key] for key in found if key != "answer"}, **word, **own}


def statuses(answer: str) -> dict[str, set[str]]:
    """Of each check in an answer of ``check --json``, its statuses."""
    found: dict[str, set[str]] = {}
    for row in json.loads(answer)["findings"]:
        found.setdefault(row["check"], set()).add(row["status"])
    return found
