"""The records of known problems: read from the files beside this one, and written as OSV.

A record has OSV's shape (https://ossf.github.io/osv-schema/), with what OSV has no field for in
``database_specific``. ``package`` is a product: all wheels of Mooncake are one. The conditions are
an expression over named facts (``judge.py``), with no code in it: a test is
``{"fact": "env.MC_X", "is": "1"}``, and ``all``, ``any`` and ``not`` join tests.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from checks.framework.finding import Consequence
from checks.framework.unknown import Unknown

FOLDER = os.path.dirname(__file__)
OSV_VERSION = "1.7.4"
# OSV's own mark of a database that no other one collects.
OSV_PREFIX = "x_"
# What a finding of a record is called: ids of checks are lower case.
CHECK_PREFIX = "advisory."

_MOONCAKE = "mooncake-transfer-engine"
_WHEELS = ("", "-cuda13", "-non-cuda", "-efa", "-efa-cuda13", "-efa-non-cuda", "-rocm", "-npu")
# Product -> ecosystem and packages of OSV; those that it has no ecosystem for have none.
PRODUCTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mooncake": ("PyPI", tuple(f"{_MOONCAKE}{suffix}" for suffix in (*_WHEELS, "-musa"))),
    **{f"{_MOONCAKE}{suffix}": ("PyPI", (f"{_MOONCAKE}{suffix}",)) for suffix in _WHEELS},
    **{name: ("PyPI", (name,)) for name in ("sglang", "vllm", "lmcache", "nixl")},
    "kernel": ("Linux", ("Kernel",)),
    "rdma-core": ("", ()),
    "nvidia-driver": ("", ()),
    "gpu-operator": ("", ()),
}
SEVERITIES: Mapping[str, Consequence | None] = {
    "will not start": Consequence.WILL_NOT_START,
    "wrong output": Consequence.CORRUPTS,
    "dies later": Consequence.DIES_LATER,
    "degraded": Consequence.DEGRADED,
    "security": None,
}


class Range(NamedTuple):
    """Versions from ``introduced`` ("0": the first) until before ``fixed`` or to ``last``."""

    introduced: str
    fixed: str = ""
    last: str = ""


# OSV's words for the fields of ``Range``.
_EVENTS = ("introduced", "fixed", "last_affected")


class Affected(NamedTuple):
    product: str
    ranges: tuple[Range, ...]


class Comparison(NamedTuple):
    """A test of one fact by ``op``.

    is: the fact equals the value, or one of a list. at_least and below: of numbers and versions.
    matches: the value is a regex that is searched for. given: the value tells whether the fact must
    have a value.
    """

    fact: str
    op: str
    value: Any


class Group(NamedTuple):
    """Expressions that ``op`` joins: all, any, or not, which has one part."""

    op: str
    parts: tuple[Expression, ...]


Expression = Comparison | Group
Fact = Callable[[str], Any]


class Advisory(NamedTuple):
    """One record of a known problem.

    Attributes:
        affected: The products, any of which is enough.
        when: The conditions that have to hold too, or None.
        severity: A word of ``SEVERITIES``.
        seen: The symptom.
        log: Ids of known lines (``explain``) that the problem may cause; lines: texts of a log that
            it does cause.
        covered_by: Checks and rules that judge the same with more facts, so that the record yields
            no finding.
        arises: An event while the launch runs that has to happen too, or "".
        command: What reproduced the problem, or "".
    """

    id: str
    summary: str
    details: str
    modified: str
    affected: tuple[Affected, ...]
    references: tuple[tuple[str, str], ...]
    severity: str
    evidence: tuple[str, ...]
    seen: str
    remedy: str
    when: Expression | None = None
    log: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    covered_by: tuple[str, ...] = ()
    arises: str = ""
    command: str = ""

    @property
    def check(self) -> str:
        """Return the id that its finding has."""
        return f"{CHECK_PREFIX}{self.id.lower()}"

    @property
    def grave(self) -> bool:
        """Tell whether the problem fails a check: the launch will not start or answers wrongly, and
        not all evidence is a mere report.
        """
        certain = set(self.evidence) - {"reported"}
        return self.severity in ("will not start", "wrong output") and bool(certain)


def record_ids() -> Iterator[str]:
    """Yield the ids of what the records find; none is read."""
    yield "launch.advisories"
    names = (name for name in sorted(os.listdir(FOLDER)) if name.endswith(".json"))
    yield from (f"{CHECK_PREFIX}{name[: -len('.json')].lower()}" for name in names)


@cache
def advisories() -> tuple[Advisory, ...]:
    """Read every record of this folder, sorted by file name.

    The files are read once.
    """
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".json"))
    return tuple(_read(name) for name in names)


def advisory(id_: str) -> Advisory | None:
    """Return the record of an id, in any case, or of the id of its finding; None without one."""
    wanted = id_.lower().removeprefix(CHECK_PREFIX)
    return next((record for record in advisories() if record.id.lower() == wanted), None)


def _read(name: str) -> Advisory:
    """Read the record of one JSON file; ``name``: the file's name in this folder."""
    with open(os.path.join(FOLDER, name), "rb") as file:
        table = json.load(file)
    details = table["database_specific"]
    texts = {key: _text(details.get(key, "")) for key in ("seen", "remedy", "arises", "command")}
    return Advisory(
        id=table["id"],
        summary=_text(table["summary"]),
        details=_text(table["details"]),
        modified=f"{table['modified']}T00:00:00Z",
        affected=tuple(_affected(row) for row in table["affected"]),
        references=tuple((row["type"], row["url"]) for row in table["references"]),
        severity=details["severity"],
        evidence=tuple(details["evidence"]),
        when=expression(details["when"]) if "when" in details else None,
        log=tuple(details.get("log", ())),
        lines=tuple(details.get("lines", ())),
        covered_by=tuple(details.get("covered_by", ())),
        **texts,
    )


def _text(value: str | list[str]) -> str:
    """Return a text; lines of a text are joined by blanks."""
    return value if isinstance(value, str) else " ".join(value)


def _affected(row: Mapping[str, Any]) -> Affected:
    """Read one affected product of a record, with its ranges of versions."""
    ranges: list[Range] = []
    for event in row["events"]:
        ((event_type, version),) = event.items()
        if event_type == "introduced":
            ranges.append(Range(version))
        else:
            field = Range._fields[_EVENTS.index(event_type)]
            ranges[-1] = ranges[-1]._replace(**{field: version})
    return Affected(row["package"], tuple(ranges))


def expression(table: Mapping[str, Any]) -> Expression:
    """Read a condition from JSON: a test of a fact, or a group of all, any or not."""
    if "fact" in table:
        (op,) = set(table) - {"fact"}
        return Comparison(table["fact"], op, table[op])
    ((op, parts),) = table.items()
    if op == "not":
        return Group(op, (expression(parts),))
    return Group(op, tuple(expression(part) for part in parts))


def holds(condition: Expression, fact: Fact) -> bool | Unknown:
    """Tell whether a condition holds.

    Args:
        fact: Returns a fact by name: a value, a set of values or Unknown. The answer is Unknown if
            it depends on an Unknown fact.
    """
    if isinstance(condition, Comparison):
        return _fact_passes(condition, fact(condition.fact))
    if condition.op == "not":
        inner = holds(condition.parts[0], fact)
        return inner if isinstance(inner, Unknown) else not inner
    return all_or_any((holds(part, fact) for part in condition.parts), condition.op == "all")


def all_or_any(parts: Iterable[bool | Unknown], every: bool) -> bool | Unknown:
    """Tell whether every part holds (``every``), or any; Unknown if the known parts do not tell."""
    unsure: Unknown | None = None
    for part in parts:
        if isinstance(part, Unknown):
            unsure = part if unsure is None else unsure
        elif part is not every:
            return not every
    return every if unsure is None else unsure


def _fact_passes(test: Comparison, value: Any) -> bool | Unknown:
    """Test the value of a fact.

    Of a set, one value that passes is enough; a list is one value. None and an empty set pass only
    a test that the fact is not given.
    """
    if isinstance(value, Unknown):
        return value
    value = tuple(value) if isinstance(value, list) else value  # --lora-paths a b
    values = value if isinstance(value, frozenset) else frozenset((value,))
    if test.op == "given":
        return (values not in (frozenset(), frozenset((None,)))) is test.value
    return all_or_any((_value_passes(test, item) for item in values if item is not None), False)


def _value_passes(test: Comparison, value: Any) -> bool | Unknown:
    """Test one value of a fact for is, matches, at_least or below.

    Returns:
        Unknown for a text that is no version, or no number if the test has one.
    """
    if test.op == "is":
        wanted = test.value if isinstance(test.value, list) else [test.value]
        return any(value == each and type(value) is type(each) for each in wanted)
    if test.op == "matches":
        return re.search(test.value, str(value)) is not None
    if isinstance(value, str) and not isinstance(test.value, str):
        return Unknown(f"{test.fact}: {value[:40]!r} is no number")
    if isinstance(value, str):
        left = version_key(test.fact, value)
        if isinstance(left, Unknown):
            return left
        less = bool(left < version_key(test.fact, test.value))
    else:
        less = value < test.value
    return less is (test.op == "below")


def program_of(product: str) -> str:
    """Return the product whose release counts: mooncake for each of Mooncake's wheels."""
    return "mooncake" if product in PRODUCTS["mooncake"][1] else product


def in_ranges(affected: Affected, version: str) -> bool | Unknown:
    """Tell whether a version is affected; Unknown for a text that is no version."""
    of = partial(version_key, affected.product)
    key = of(version)
    if isinstance(key, Unknown):
        return key
    return any(
        (span.introduced == "0" or of(span.introduced) <= key)
        and not (span.fixed and key >= of(span.fixed))
        and not (span.last and key > of(span.last))
        for span in affected.ranges
    )


def version_key(product: str, text: str) -> Any:
    """Return a key that orders the versions of a product: PEP 440 for products of PyPI, else the
    leading numbers.

    Returns:
        Unknown for a text that is no version.
    """
    if PRODUCTS.get(product, ("",))[0] == "PyPI":
        from packaging.version import InvalidVersion, Version

        try:
            return Version(Version(text).public)
        except InvalidVersion:
            return Unknown(f"{product} {text[:40]!r} is no version")
    numbers = re.match(r"v?\d+(?:[.-]\d+)*", text)
    if numbers is None:
        return Unknown(f"{product} {text[:40]!r} is no version")
    return tuple(map(int, re.findall(r"\d+", numbers[0])))


def range_text(affected: Affected) -> str:
    """Return the affected versions in words: ``mooncake 0.3.10 to before 0.3.13``."""
    texts = []
    for span in affected.ranges:
        first = "" if span.introduced == "0" else f"{span.introduced} "
        if span.fixed:
            texts.append(f"{first}{'to ' if first else ''}before {span.fixed}")
        elif span.last:
            texts.append(span.last if span.last == span.introduced else f"{first}to {span.last}")
        else:
            texts.append(f"{first}and newer" if first else "every release")
    return f"{affected.product} {', '.join(texts)}"


def condition_text(condition: Expression | None) -> str:
    """Return a condition in words, "" without a condition."""
    if condition is None:
        return ""
    if isinstance(condition, Comparison):
        name, value = condition.fact, condition.value
        if condition.op == "given":
            return f"{name} is {'' if value else 'not '}given"
        if condition.op == "is" and isinstance(value, bool):
            return name if value else f"not {name}"
        wanted = " or ".join(map(str, value)) if isinstance(value, list) else value
        return f"{name} {condition.op.replace('_', ' ').replace('below', 'is below')} {wanted}"
    if condition.op == "not":
        return f"not ({condition_text(condition.parts[0])})"
    join = " and " if condition.op == "all" else " or "
    parts = ((condition_text(part), isinstance(part, Group)) for part in condition.parts)
    return join.join(f"({text})" if grouped else text for text, grouped in parts)


def as_osv(known: Advisory) -> dict[str, Any]:
    """Return a record in OSV's form; ``database_specific`` has what OSV has no place for.

    ``affected`` has only products for which OSV has an ecosystem.
    """
    affected = []
    for each in known.affected:
        ecosystem, names = PRODUCTS[each.product]
        pairs = (
            pair
            for span in each.ranges
            for pair in zip(_EVENTS, (span.introduced, span.fixed, span.last), strict=True)
        )
        events = [{event: version} for event, version in pairs if version]
        for name in names:
            package = {"ecosystem": ecosystem, "name": name}
            ranges = [{"type": "ECOSYSTEM", "events": events}]
            affected.append({"package": package, "ranges": ranges})
    return {
        "schema_version": OSV_VERSION,
        "id": f"{OSV_PREFIX}{known.id}",
        "modified": known.modified,
        "summary": known.summary,
        "details": f"{known.details}\n\nSeen: {known.seen}\n\nWhat to do: {known.remedy}",
        "affected": affected,
        "references": [{"type": type_, "url": url} for type_, url in known.references],
        "database_specific": {
            "severity": known.severity,
            "evidence": list(known.evidence),
            "condition": condition_text(known.when),
            "arises": known.arises,
            "affected": [range_text(each) for each in known.affected],
            "judged_by": list(known.covered_by or (known.check,)),
        },
    }


def for_scanners(known: Advisory) -> bool:
    """Tell whether a scanner, which knows only packages, can use a record.

    Every range of versions has to end, and either severity is security or the first affected
    product a wheel of Mooncake.
    """
    ends = all(bounds.fixed or bounds.last for each in known.affected for bounds in each.ranges)
    by_itself = known.severity == "security" or known.affected[0].product in PRODUCTS["mooncake"][1]
    return ends and by_itself
