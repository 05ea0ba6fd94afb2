"""What ``diff`` says of two neighbouring releases is what the commands say of each, asked alone.

Every section is held against the command that answers it: check, mooncake-hicache-sizing, read,
keys, advisories and plan.
"""

import contextlib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from preflight.engines.programs.sglang_argument_tables import known_releases
from preflight.report.diff.full_answer import NO_FLAG
from tests.builders.examples import some
from tests.builders.synthetic import build_host, gpu_host
from tests.report.diff.test_diff import LAUNCHES, SCHEMA
from tests.rows import subject
from tests.valid import valid

Line = tuple[str, str]
Ask = Callable[..., Any]


class Answers(NamedTuple):
    """What the commands say of one release, as diff's lines: (subject, name) -> text."""

    status: str
    sizing: str
    findings: frozenset[Line]
    may_arise: frozenset[Line]
    memory: Mapping[Line, str]
    flags: Mapping[str, str]
    keys: Mapping[Line, str]
    settings: Mapping[Line, str]


Of = Callable[[str, str], Answers]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return what asks a command about a launch, by its name here, on a host with GPUs."""
    folder = tmp_path_factory.mktemp("neighbours")
    host = str(build_host(folder / "root", gpu_host()))
    paths = {name: folder / f"{number}.sh" for number, name in enumerate(LAUNCHES)}
    for name, path in paths.items():
        path.write_text(LAUNCHES[name])

    def asked(command: str, name: str, *words: str) -> Any:
        call = run_sizing if command == "sizing" else run
        first = [] if command == "sizing" else command.split()
        more = ("--json", "--mooncake-version", "0.3.12", "--root", host)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            call([*first, *more, *words, str(paths[name])])
        found = json.loads(printed.getvalue())
        return found if command == "sizing" else {**found, **found["answer"]}

    return asked


@pytest.fixture(scope="module")
def answers(ask: Ask) -> Of:
    """Return what the commands say of a launch and a release, which two pairs share."""
    return cache(
        lambda name, release: _answers(
            lambda command: ask(command, name, "--sglang-version", release)
        )
    )


def _answers(ask: Callable[[str], Any]) -> Answers:
    check, sizing, read = ask("check"), ask("sizing"), ask("read -vv")
    wanting = [row for row in check["findings"] if row["status"] in ("fail", "unknown", "warn")]
    return Answers(
        check["status"],
        sizing["exact"]["status"],
        frozenset((row["check"], one["name"]) for row in wanting for one in row["subjects"]),
        frozenset(
            (row["check"], row["process"])
            for row in ask("explain --advisories")["advisories"]
            if row["arises"] and row["affected"] is not False and row["judged_by"] == [row["check"]]
        ),
        dict(_memory(sizing["exact"])),
        dict(_flags(read)),
        dict(_keys(ask("read --keys"))),
        {
            (row["scope"], f"{row['kind']} {row['name']}"): row["wanted"]
            for row in ask("plan")["settings"]
        },
    )


def _memory(exact: Any) -> Iterator[tuple[Line, str]]:
    bytes_: Counter[Line] = Counter()
    for process in exact["processes"]:
        for one in process["allocations"]:
            bytes_[process["name"], one["what"]] += one["bytes"]
    for line, size in bytes_.items():
        yield line, f"{size:,} B"
    for pool in exact["hugetlb"]:
        pages = f"{pool['page_size_bytes'] >> 20} MiB pages needed"
        yield ("host", f"{pages}, all nodes"), f"{pool['need_pages']} pages"
        for node in pool["nodes"]:
            yield ("host", f"{pages}, node {node['node']}"), f"{node['need_pages']} pages"


def _flags(read: Any) -> Iterator[tuple[str, str]]:
    (server,) = read["processes"]
    for name, setting in server["settings"].items():
        store, origin = name.startswith("store."), setting["origin"]
        flag = f"store: {name[6:]}" if store else f"--{name.replace('_', '-')}"
        default = " (default)" if origin.startswith("default of") and not store else ""
        yield flag, f"{setting['value']}{default}"


def _keys(keys: Any) -> Iterator[tuple[Line, str]]:
    for one in keys["processes"]:
        yield (one["name"], "key"), one["pattern"]
        for part in ("named", "held"):
            for what, value in one[part].items():
                if what != "SGLang release":  # told by what the keys hold
                    yield (one["name"], f"{part}: {what}"), value


def differing(old: Mapping[Any, str], new: Mapping[Any, str]) -> set[Any]:
    return {key for key in {*old, *new} if old.get(key) != new.get(key)}


PAIRS = list(pairwise(known_releases()))[::-1]  # the newest is always among them


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new"),
    # Half of the pairs, each with one of the launches; all with all in the random profile.
    [
        (name, *pair)
        for at, name in enumerate(LAUNCHES)
        for pair in some([*PAIRS[at:], *PAIRS[:at]], 2 * len(LAUNCHES))
    ],
)
def test_neighbouring_releases_differ_as_each_answers_alone(
    ask: Ask, answers: Of, name: str, old: str, new: str
) -> None:
    found = ask("diff", name, "--from", f"sglang={old}", "--to", f"sglang={new}")
    valid({key: found[key] for key in SCHEMA["required"]}, SCHEMA)
    before, after = answers(name, old), answers(name, new)
    sections: dict[str, dict[Line, tuple[str | None, str | None]]] = defaultdict(dict)
    for row in found["changes"]:
        sections[row["section"]][subject(row), row["name"]] = row["from"], row["to"]

    # The verdict, and the code that is its own.
    verdict = {("sglang", "release"): (old, new)}
    if before.status != after.status:
        verdict["check", "verdict"] = before.status, after.status
    if before.sizing != after.sizing:
        verdict["sizing", "verdict"] = before.sizing, after.sizing
    assert sections.pop("verdict") == verdict
    order = ("pass", "warn", "unknown", "fail")
    assert found["exit_code"] == 1 + (order.index(after.status) > order.index(before.status))

    # What comes and goes, of checks and of records.
    rows = {**sections.pop("findings", {}), **sections.pop("advisories", {})}
    lines = before.findings | before.may_arise, after.findings | after.may_arise
    assert {line for line, (_, to) in rows.items() if to is None} == lines[0] - lines[1]
    assert {line for line, (was, _) in rows.items() if was is None} == lines[1] - lines[0]
    assert {line for line, both in rows.items() if None not in both} <= lines[0] & lines[1]

    # Bytes and pages. Other pages behind the same bytes are lines too, and what is regular memory.
    memory = sections.pop("memory", {})
    for line, both in memory.items():
        if line[1] != "regular memory":
            texts = [answer.memory.get(line, "") for answer in (before, after)]
            assert [(told or "").split(" (")[0].split(", h")[0] for told in both] == texts
    assert differing(before.memory, after.memory) <= {*memory}

    flags = {flag: both for (_, flag), both in sections.pop("flags", {}).items()}
    assert {*flags} == differing(before.flags, after.flags)
    for flag, both in flags.items():
        assert both == tuple(one.flags.get(flag, NO_FLAG) for one in (before, after))

    keys = sections.pop("keys", {})
    assert {*keys} == differing(before.keys, after.keys)
    assert all(both == (before.keys[one], after.keys[one]) for one, both in keys.items())
    settings = sections.pop("settings", {})
    scopes = [scope for scope, _ in differing(before.settings, after.settings)]
    assert Counter(scope for scope, _ in settings) == Counter(scopes)
    # The host is the same: no line is of it, and there are no other sections.
    assert not sections
