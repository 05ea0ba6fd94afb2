"""What reports say, each thing once: rows refer to it by number."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from preflight.fleet.base.decode import LARGEST_NUMBER, LONGEST_TEXT, WrongError, kind_of, short
from preflight.fleet.reports.records import STATUSES, FleetFinding, Value

# Written in place of a node's own name.
ITSELF = "the node"


class Itself:
    """A node's names in its sentences, so that what two nodes say of themselves is the same."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names, key=len, reverse=True)
        whole = "|".join(map(re.escape, self._names))
        self._pattern = re.compile(rf"(?<![\w.-])(?:{whole})(?![\w-]|\.\w)")

    @classmethod
    def of(cls, content: bytes, node: str, host: str) -> Itself:
        """Nobody where none of its sentences can hold one of its names.

        Counting them in the whole text spares looking into each of hundreds of sentences.
        """
        names = {name for name in (node, host) if len(name) > 1}
        counts = [(name.encode("utf-8", "surrogatepass"), name) for name in names]
        named = any(content.count(one) > (node, host).count(name) for one, name in counts)
        return cls(names) if named else NOBODY

    def within(self, *texts: str) -> bool:
        return any(name in text for name in self._names for text in texts)

    def unnamed(self, text: str) -> str:
        return self._pattern.sub(ITSELF, text) if self.within(text) else text


NOBODY = Itself(())


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

    def numbers_of_findings(self, rows: Sequence[Any], itself: Itself) -> list[int]:
        return [self._number_of_row(row, f"findings[{at}]", itself) for at, row in enumerate(rows)]

    def _number_of_row(self, row: Any, where: str, itself: Itself) -> int:
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
            # Known words may hold this node's name: of a node whose name is a part of it.
            if number is not None and (itself is NOBODY or self._clean(finding, itself) == finding):
                return number
        except KeyError as error:
            raise WrongError(f"{where} has no {error.args[0]}") from None
        except (TypeError, AttributeError):
            if isinstance(row, dict):
                raise WrongError(f"{where} holds what is no text") from None
            raise WrongError(f"{where} is {kind_of(row)}, not an object") from None
        for name, value in finding._asdict().items():
            if not isinstance(value, str) and not (name == "ignored" and value is None):
                raise WrongError(f"{where}: {name} is {kind_of(value)}, not a text")
        if finding.status not in STATUSES:
            raise WrongError(f"{where}: status is {short(finding.status)}")
        return self.number_of(self._clean(finding, itself))

    def _clean(self, finding: FleetFinding, itself: Itself) -> FleetFinding:
        return FleetFinding(
            self.sentence(finding.check),
            finding.status,
            self.sentence(finding.subject),
            self.sentence(itself.unnamed(finding.have)),
            self.sentence(itself.unnamed(finding.need)),
            self.sentence(itself.unnamed(finding.text)),
            None if finding.ignored is None else self.sentence(finding.ignored),
        )

    def number_of(self, finding: FleetFinding) -> int:
        number = self._finding_numbers.setdefault(finding, len(self.findings))
        if number == len(self.findings):
            self.findings.append(finding)
        return number

    def numbers_of_passes(self, rows: Sequence[Any], itself: Itself) -> list[int]:
        numbers = []
        for at, row in enumerate(rows):
            number = self._known(self._pass_numbers, row if type(row) is list else None)
            # A sentence that another node said holds that node's name, if any.
            own = number is not None and itself is not NOBODY and itself.within(*row[1:])
            if number is None or own:
                if type(row) is not list or [type(one) for one in row] != [str] * 3:
                    raise WrongError(f"passes[{at}] is not three texts")
                check, subject, have = row
                finding = FleetFinding(check, "pass", itself.unnamed(subject), have)
                number = self.number_of(self._clean(finding, itself))
                if not itself.within(subject, have):
                    self._pass_numbers[check, subject, have] = number
            numbers.append(number)
        return numbers

    def numbers_of_facts(self, facts: Mapping[str, Any]) -> list[int]:
        numbers = []
        for name, value in facts.items():
            number = self._known(self._fact_numbers, (name, value, value.__class__))
            if number is None:
                if not isinstance(value, str | int):
                    raise WrongError(f"facts: {short(name)} is {kind_of(value)}")
                if type(value) is int and abs(value) > LARGEST_NUMBER:
                    bits = f"a number of {value.bit_length()} bits"
                    raise WrongError(f"facts: {short(name)} is {bits}")
                number = self._fact_numbers[name, value, value.__class__] = len(self.facts)
                clean = self.sentence(value) if isinstance(value, str) else value
                self.facts.append((self.sentence(name), clean))
            numbers.append(number)
        return numbers

    @staticmethod
    def _known(numbers: Mapping[Any, int], row: Any) -> int | None:
        """Of a row of any kind; what cannot be looked up is not known."""
        try:
            return numbers.get(tuple(row))
        except TypeError:
            return None

    def numbers_of_unknown_facts(self, reasons: Mapping[str, Any]) -> list[int]:
        numbers = []
        for name, reason in reasons.items():
            if not isinstance(reason, str):
                raise WrongError(f"unknown_facts: {short(name)} is {kind_of(reason)}, not a text")
            key = (self.sentence(name), self.sentence(reason))
            number = self._unknown_numbers.setdefault(key, len(self.unknown_facts))
            if number == len(self.unknown_facts):
                self.unknown_facts.append(key)
            numbers.append(number)
        return numbers

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

    def keep_numbers(self, numbers: Iterable[int]) -> Sequence[int]:
        """Nodes that say the same share one list of numbers, ascending."""
        found = array("I", sorted(set(numbers)))
        return self._kept.setdefault(found.tobytes(), found)  # type: ignore[no-any-return]


def _folded(subjects: Any, itself: Itself) -> Any:
    """As one text; what is no list of texts is given back for the caller to refuse."""
    if not isinstance(subjects, list) or not subjects:
        return None
    subjects = [itself.unnamed(subject) for subject in subjects]
    if len(subjects) == 1:
        return subjects[0]
    from preflight.check.report import fold

    return fold(subjects)
