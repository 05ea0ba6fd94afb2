"""What reports say, each thing once: rows refer to it by number."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from preflight.fleet.merge.fields import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    WrongError,
    kind_of,
    object_field,
    short,
    text_field,
)
from preflight.fleet.merge.names import Itself, unnamed
from preflight.fleet.merge.records import STATUSES, FleetFinding, Trouble, Value


class Tables:
    """Findings, facts and facts that are not known, by number. Fields are checked when new.

    Ten thousand nodes say the same, so a look into a dict stands for the check of most.
    """

    def __init__(self) -> None:
        self.findings: list[FleetFinding] = []
        self.facts: list[tuple[str, Value]] = []
        self.unknown_facts: list[tuple[str, str]] = []
        self._finding_numbers: dict[FleetFinding, int] = {}
        self._pass_numbers: dict[tuple[str, str, str], int] = {}
        self._fact_numbers: dict[tuple[str, Value, type], int] = {}
        self._unknown_numbers: dict[tuple[str, str], int] = {}
        self._kept: dict[Any, Any] = {}

    def numbers_of_findings(self, rows: Sequence[Any], itself: Itself | None) -> list[int]:
        numbers = []
        for at, row in enumerate(rows):
            try:
                finding = FleetFinding(
                    row["check"],
                    row["status"],
                    _folded(row["subjects"], itself),
                    row["have"],
                    row["need"],
                    row["text"],
                    row.get("ignored"),
                )
                number = self._finding_numbers.get(finding)
                if number is not None and itself is not None:
                    # Known words may hold this node's name: of a node whose name is a part of it.
                    number = number if self._clean(finding, itself) == finding else None
            except (TypeError, KeyError, AttributeError) as error:
                raise _wrong_finding(at, row, error) from None
            if number is None:
                for name, value in finding._asdict().items():
                    if not isinstance(value, str) and not (name == "ignored" and value is None):
                        reason = f"findings[{at}]: {name} is {kind_of(value)}, not a text"
                        raise WrongError(Trouble.WRONG, reason)
                if finding.status not in STATUSES:
                    reason = f"findings[{at}]: status is {short(finding.status)}"
                    raise WrongError(Trouble.WRONG, reason)
                number = self.number_of(self._clean(finding, itself))
            numbers.append(number)
        return numbers

    def _clean(self, finding: FleetFinding, itself: Itself | None) -> FleetFinding:
        return FleetFinding(
            self.sentence(finding.check),
            finding.status,
            self.sentence(finding.subject),
            self.sentence(unnamed(itself, finding.have)),
            self.sentence(unnamed(itself, finding.need)),
            self.sentence(unnamed(itself, finding.text)),
            None if finding.ignored is None else self.sentence(finding.ignored),
        )

    def number_of(self, finding: FleetFinding) -> int:
        number = self._finding_numbers.setdefault(finding, len(self.findings))
        if number == len(self.findings):
            self.findings.append(finding)
        return number

    def numbers_of_passes(self, rows: Sequence[Any], itself: Itself | None) -> list[int]:
        numbers = []
        known = self._pass_numbers
        for at, row in enumerate(rows):
            try:
                check, subject, have = row
                # A sentence that another node said holds that node's name, if any.
                number = known.get((check, subject, have))
                if number is not None and itself is not None and itself.within(subject, have):
                    number = None
            except (TypeError, ValueError):
                number = None
            if number is None:
                if not isinstance(row, list) or [type(one) for one in row] != [str] * 3:
                    raise WrongError(Trouble.WRONG, f"passes[{at}] is not three texts")
                finding = FleetFinding(check, "pass", unnamed(itself, subject), have)
                number = self.number_of(self._clean(finding, itself))
                if itself is None or not itself.within(subject, have):
                    known[check, subject, have] = number
            numbers.append(number)
        return numbers

    def numbers_of_facts(self, document: dict[str, Any]) -> list[int]:
        facts = object_field(document, "facts")
        facts["mooncake-preflight"] = text_field(document, "version")
        numbers = []
        for name, value in facts.items():
            key = (name, value, value.__class__)
            try:
                number = self._fact_numbers.get(key)
            except TypeError:
                number = None
            if number is None:
                if not isinstance(value, str | int):
                    reason = f"facts: {short(name)} is {kind_of(value)}"
                    raise WrongError(Trouble.WRONG, reason)
                if type(value) is int and abs(value) > LARGEST_NUMBER:
                    reason = f"facts: {short(name)} is a number of {value.bit_length()} bits"
                    raise WrongError(Trouble.WRONG, reason)
                number = self._fact_numbers[key] = len(self.facts)
                clean = self.sentence(value) if isinstance(value, str) else value
                self.facts.append((self.sentence(name), clean))
            numbers.append(number)
        return sorted(numbers)

    def numbers_of_unknown_facts(self, document: dict[str, Any]) -> list[int]:
        numbers = []
        for name, reason in object_field(document, "unknown_facts").items():
            if not isinstance(reason, str):
                told = f"unknown_facts: {short(name)} is {kind_of(reason)}, not a text"
                raise WrongError(Trouble.WRONG, told)
            key = (self.sentence(name), self.sentence(reason))
            number = self._unknown_numbers.setdefault(key, len(self.unknown_facts))
            if number == len(self.unknown_facts):
                self.unknown_facts.append(key)
            numbers.append(number)
        return sorted(numbers)

    def sentence(self, text: str) -> str:
        """One text, however many say it: not too long, and nothing that cannot be written."""
        found = self._kept.get(text)
        if found is None:
            clean = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
            clean = clean if len(clean) <= LONGEST_TEXT else f"{clean[: LONGEST_TEXT - 3]}..."
            found = self._kept[text] = clean
        return str(found)

    def keep(self, value: Any) -> Any:
        return self._kept.setdefault(value, value)

    def keep_numbers(self, numbers: list[int]) -> Sequence[int]:
        """Nodes that say the same share one list of numbers."""
        found = array("I", numbers)
        return self._kept.setdefault(found.tobytes(), found)  # type: ignore[no-any-return]


def _folded(subjects: Any, itself: Itself | None) -> Any:
    """As one text; what is no list of texts is given back for the caller to refuse."""
    if not isinstance(subjects, list) or not subjects:
        return None
    if itself is not None:
        subjects = [unnamed(itself, subject) for subject in subjects]
    if len(subjects) == 1:
        return subjects[0]
    from preflight.check.report import fold

    return fold(subjects)


def _wrong_finding(at: int, row: Any, error: Exception) -> WrongError:
    if not isinstance(row, dict):
        return WrongError(Trouble.WRONG, f"findings[{at}] is {kind_of(row)}, not an object")
    if isinstance(error, KeyError):
        return WrongError(Trouble.WRONG, f"findings[{at}] has no {error.args[0]}")
    return WrongError(Trouble.WRONG, f"findings[{at}] holds what is no text")
