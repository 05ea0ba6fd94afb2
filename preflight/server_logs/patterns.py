"""The known lines of logs: records, and the reader of the tables in this folder that hold them.

A table is TOML: rows of ``[[line]]``, each with ``[[line.when]]`` for what other words of the same
log decide. ``<<word>>`` stands for an entry of its ``[shared]``. What each key means stands at the
fields of ``Pattern`` and ``Case``.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from checks.framework.regex import regex
from preflight.launch_problems.advisories.records import (
    CHECK_PREFIX,
    Advisory,
    advisories,
    program_of,
    range_text,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Where several patterns look for the same words, the first that matches a line has it.
TABLES = "kernel memory registration rdma services store engines sglang system".split()
# Of a record of a known problem, by the product that it affects; SGLang prints the others.
_PRINTER_OF = {"mooncake": "Mooncake", "vllm": "vLLM", "lmcache": "LMCache", "nixl": "NIXL"}
_SHARED = regex(r"<<([\w-]+)>>")


class Stage(IntEnum):
    """How near to the root cause a line stands; explanations are shown in this order."""

    KERNEL = 0  # the kernel's own words: they decide what an errno meant
    CAUSE = 1
    SYMPTOM = 2  # has several causes
    WARNING = 3  # it runs, not as meant
    CONSEQUENCE = 4  # something else failed before
    HARMLESS = 5  # nothing is wrong: said of a quoted line alone
    SIMILAR = 6  # a line that has some words of a question, and may be another

    @property
    def word(self) -> str:
        """The stage in words for a person: ``root cause`` for KERNEL and CAUSE, else the name."""
        return self.name.lower() if self > Stage.CAUSE else "root cause"


# The named groups of a match; a group that took no part is not in it.
Groups = Mapping[str, str]


class PatternHit(NamedTuple):
    """What a log holds of one pattern: how often, from which line on, the first and last match.

    Attributes:
        names: Distinct devices, addresses, variables or keys (the group ``name``), a few.
        first_time, last_time: In seconds and as a text; None, "" if the line has none.
        first_text: The text of the first match, which may name its process.
        ranks: Of SGLang, those that printed the line.
    """

    times: int
    line: int
    excerpt: str
    first: Groups
    last: Groups
    names: tuple[str, ...]
    last_line: int = 0
    first_time: tuple[float | None, str] = (None, "")
    last_time: tuple[float | None, str] = (None, "")
    first_text: str = ""
    ranks: tuple[str, ...] = ()


# Everything that was found in one log, by the ids of the patterns.
Hits = Mapping[str, PatternHit]


class Case(NamedTuple):
    """What a log tells beyond a pattern's own words; the first whose conditions all hold is used.

    Conditions on other lines, by id: seen (one of these is in the log); unseen (none is); after
    (one of these comes before this line); before (one of these comes after the last such line). By
    group of the line: is_ (it is one of these words, "" if it is missing), begins and has (with one
    of these words), above (a number above this). A group may be one of the first id of ``seen``
    that the log has: ``seen.limit`` of its first line, ``last.limit`` of its last.

    Attributes:
        decided: What is certain in this case. Each other field replaces the pattern's, unless it is
            "" or None.
    """

    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    is_: Mapping[str, tuple[str, ...]] = {}
    begins: Mapping[str, tuple[str, ...]] = {}
    has: Mapping[str, tuple[str, ...]] = {}
    above: Mapping[str, int] = {}
    decided: str = ""
    sums: str = ""
    cause: str = ""
    remedy: str = ""
    checks: tuple[str, ...] | None = None
    stage: Stage | None = None


class Pattern(NamedTuple):
    """One known line.

    Attributes:
        find: One of these texts is in the line; they are searched first, for speed.
        regex: Searched around that text, the first text itself by default; named groups hold sizes,
            devices, errno; ``name2`` is ``name`` in another branch.
        example: Such a line.
        checks: Ids of the checks and rules that foresee the line, the best first. cause, remedy,
            apart (the difference from look-alikes) may name groups in braces.
        unless: Ids of better explanations: found in the log, they silence this one.
        sums: A sum of its numbers, left out if one is missing or 0; ``{size:bytes}`` is a number
            with its unit.
        compute: The function of ``explain`` that adds groups.
        process: The printer, if the line does not tell. A pattern without a cause is a mark: it
            explains nothing, others read it.
    """

    id: str
    printer: str
    stage: Stage
    find: tuple[str, ...]
    regex: str
    example: str = ""
    checks: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""
    apart: str = ""
    unless: tuple[str, ...] = ()
    sums: str = ""
    compute: str = ""
    cases: tuple[Case, ...] = ()
    process: str = ""


@lru_cache(maxsize=1)
def read_patterns() -> tuple[Pattern, ...]:
    """Return all patterns in the order in which a line is compared: first those of the tables, then
    of the families, then of known problems that no other pattern names.
    """
    patterns: list[Pattern] = []
    for name in TABLES:
        table = _table(name)
        shared = table.get("shared", {})
        patterns += [_pattern(row, shared) for row in table["line"]]
    patterns += [row for family in _table("families")["family"] for row in _of_family(family)]
    # A row that names a record knows more of its lines than the record, which has them alone.
    cited = {id_ for pattern in patterns for id_ in pattern.checks}
    cited |= {f"{CHECK_PREFIX}{id_.lower()}" for p in patterns for id_ in _RECORD.findall(p.cause)}
    records = (record for record in advisories() if record.lines and record.check not in cited)
    return (*patterns, *map(_of_record, records))


def _table(name: str) -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), f"{name}.toml")
    with open(path, encoding="utf-8") as file:
        return tomllib.loads(file.read())


def _of_family(family: Mapping[str, Any]) -> Iterator[Pattern]:
    """Yield a pattern for each row of a family; ``families.toml`` describes the columns."""
    for row in family["rows"].strip().splitlines():
        name, letter, lines_text, cause, *remedy = [part.strip() for part in row.split(" | ")]
        lines = lines_text.split(" || ")
        counts: Counter[str] = Counter()
        yield Pattern(
            f"{family['id']}.{name}",
            family["from"],
            _STAGES[letter],
            tuple(max(_GAP.split(line.strip("^$")), key=len) for line in lines),
            "|".join(_line_regex(line, counts) for line in lines),
            _GAP.sub(_sample, lines[0]).strip("^$"),
            () if letter == "H" else tuple(family["checks"]),
            cause,
            remedy[0] if remedy else "nothing" if letter == "H" else family["remedy"],
            process=family["process"],
        )


_STAGES = {stage.name[0]: stage for stage in (Stage.CAUSE, Stage.SYMPTOM, Stage.WARNING)}
_STAGES |= {"Q": Stage.CONSEQUENCE, "H": Stage.HARMLESS}
_GAP = regex(r"\*|\{[a-z]+\d?\}")
_NUMBERS = ("size", "port", "times")
_GROUPS = dict.fromkeys(_NUMBERS, r"\d{1,20}") | dict.fromkeys(("error", "what"), r"[^\n]{1,120}")
# A word that ends with no mark of a sentence.
_NAME = r"[^\s,'\"]{0,119}[^\s,'\":;.]"
_RECORD = regex(r"\bMP-\d{4}-\d{4}\b")


def _sample(gap: re.Match[str]) -> str:
    """Return the text that an example has in place of a ``*`` or a group such as ``{size}``."""
    base = gap[0].strip("{}0123456789")
    return "12" if base in _NUMBERS else "NAME" if base == "name" else ".."


def _line_regex(line: str, counts: Counter[str]) -> str:
    """Return the regular expression of one line of a family row; named groups replace ``{name}``.

    Args:
        counts: How often each group was used so far in this row; it is updated.
    """
    ends, text = line.endswith("$"), line.strip("^$")
    first, *parts = (re.escape(part) for part in _GAP.split(text))
    regex = f"^{first}" if line.startswith("^") else first
    for gap, part in zip(_GAP.findall(text), parts, strict=True):
        if gap == "*":
            regex += r"[^\n]{0,400}?" + part
            continue
        base = gap.strip("{}0123456789")
        counts[base] += 1
        group = base if counts[base] == 1 else f"{base}{counts[base]}"
        what = _GROUPS.get(base, _NAME)
        # In the middle of a line as little as the words behind it allow.
        lazy = "?" if (part or ends) and base not in _NUMBERS else ""
        quote = r"['\"]?" if base == "name" else ""
        regex += f"{quote}(?P<{group}>{what}{lazy}){part}"
    return regex + (r"\s*$" if ends else "")


def _of_record(known: Advisory) -> Pattern:
    """Build a pattern for the log lines of a known problem."""
    regex = "|".join(map(re.escape, known.lines))
    ids = (known.check, *known.covered_by)
    ranges = "; ".join(map(range_text, known.affected))
    cause, lines = f"{known.summary} ({ranges})", known.lines
    printer = _PRINTER_OF.get(program_of(known.affected[0].product), "SGLang")
    return Pattern(
        known.check, printer, Stage.SYMPTOM, lines, regex, lines[0], ids, cause, known.remedy
    )


def _pattern(row: Mapping[str, Any], shared: Mapping[str, Any]) -> Pattern:
    """Build a pattern from one row of a table.

    Args:
        shared: The table's texts for ``<<word>>``.
    """
    values = {key: _read(key, value, shared) for key, value in row.items()}
    defaults = {"stage": Stage.WARNING, "regex": re.escape(values["find"][0])}
    cases = tuple(
        Case(**{_FIELD_OF.get(key, key): _read(key, value, shared) for key, value in case.items()})
        for case in values.pop("when", ())
    )
    fields = {_FIELD_OF.get(key, key): value for key, value in values.items()}
    return Pattern(**{**defaults, **fields}, cases=cases)


# Keys that are called otherwise in Python.
_FIELD_OF = {"from": "printer", "is": "is_"}
_PROSE = ("cause", "remedy", "sums", "apart", "decided")
_LISTS = ("checks", "find", "unless", "seen", "unseen", "after", "before")


def _read(key: str, value: Any, shared: Mapping[str, Any]) -> Any:
    """Convert a TOML value to the type of its field.

    Args:
        key: The field, as the table spells it.
    """
    if key in _LISTS:
        return _texts(value, shared)
    if key in ("is", "begins", "has"):
        lists = ((name, x if isinstance(x, list) else [x]) for name, x in value.items())
        return {name: _texts(each, shared) for name, each in lists}
    if key in ("above", "when"):
        return value
    joined = value if isinstance(value, str) else "".join(value)
    text = _SHARED.sub(lambda match: str(shared[match[1]]), joined)
    if key == "stage":
        return Stage[text.upper()]
    return " ".join(text.split()) if key in _PROSE else text


def _texts(value: list[str], shared: Mapping[str, Any]) -> tuple[str, ...]:
    """Return texts as a tuple; ``<<word>>`` is replaced by the texts of that entry of [shared]."""
    every: list[str] = []
    for each in value:
        match = _SHARED.fullmatch(each)
        every += shared[match[1]] if match else [each]
    return tuple(every)
