"""What the program says today of what was recorded in the guests, as the tests look at it."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from checks.framework.pages import Spot
from checks.framework.unknown import Unknown
from preflight.benchmark.rehearsal.records import (
    Library,
    ProcessMemory,
    RehearsalPlan,
    RehearsalRun,
    StepResult,
    Transfer,
)
from preflight.benchmark.rehearsal.rehearse import answer_of, judge, prepare
from preflight.cli.main import run
from preflight.command_inputs.host_source import open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.verdict.report import EXIT_CODES
from tests.lab.fault_guest import Answer, Seen
from tests.lab.measure import Measured
from tests.lab.rehearse_staged import staged_plan, whole_answer
from tests.lab.results import capture, recorded
from tests.rows import flat, in_texts

LIMIT_SECONDS = 60


def answer_again(order: Mapping[str, Any], then: Mapping[str, Any], capture: Path) -> Any:
    """Return the answer as ``rehearse --json`` prints it. then: the one that was recorded."""
    host = open_host(str(capture))
    said = then["library"]
    library = Library(said["interpreter"], said["folder"], said["wheel"], said["version"])
    if order["processes"]:
        wanted = (order["processes"], order["pools"], order["nic_nodes"])
        plan = staged_plan(*wanted, library, host.root, host.environment)
        return flat(whole_answer(judge(plan, run_of(plan, then))))
    sized = size_within(LaunchWords(mooncake_version=library.version), host, LIMIT_SECONDS)
    assert sized is not None
    assert not isinstance(sized, Unknown), sized
    prepared = prepare(sized, host, library, then["scale"])
    assert not isinstance(prepared, Unknown), prepared
    return flat(whole_answer(answer_of(prepared, run_of(prepared.plan, then))))


def _ended(said: str) -> int | None:
    """Return the code that a recorded process ended with, as ``Reply`` has it; None: it lived."""
    match = re.fullmatch(r"(SIG\w+ \()?exit code (\d+)\)?", said)
    if match is None:
        return None
    return 128 - int(match[2]) if match[1] else int(match[2])


def run_of(plan: RehearsalPlan, then: Mapping[str, Any]) -> RehearsalRun:
    """Return what was measured, as of the steps of ``plan``, which must be those of then."""
    names = [step.member.name for step in plan.steps]
    now = [(name, step.action) for name, step in zip(names, plan.steps, strict=True)]
    steps = then["steps"]
    assert [(one["process"], one["kind"]) for one in steps] == now[: len(steps)]
    done = []
    for step, one in zip(plan.steps, steps, strict=False):
        measured = one["measured"]
        done.append(
            StepResult(
                step,
                measured["error"] or "",
                measured["seconds"],
                _pages(measured["pages"] or ()),
                measured["populated_seconds"],
                measured["registered_seconds"],
                tuple(measured["lines"]),
                measured["resident_bytes"],
                measured["pinned_bytes"],
                _ended(measured["error"] or ""),
            )
        )
    assert [one["name"] for one in then["processes"]] == [one.name for one in plan.members]
    kept = ("pinned_bytes", "locked_bytes", "resident_bytes")
    held = zip(plan.members, then["processes"], strict=True)
    moved = then["transfer"]
    return RehearsalRun(
        tuple(done),
        tuple(ProcessMemory(member, *(one[name] for name in kept)) for member, one in held),
        _pages(then["pages"]),
        Transfer(
            moved["put"] or "",
            moved["got"] or "",
            moved["size_bytes"],
            moved["error"] or "",
            moved["skipped"] or "",
            moved["seconds"],
        ),
        "",
        {one["page_size_bytes"]: one["pages"] for one in then["left_pages"]},
        then["lowest_room_bytes"],
    )


def _pages(rows: Any) -> dict[Spot, int]:
    return {Spot(row["page_size_bytes"], row["numa_node"]): row["pages"] for row in rows}


def _said(*words: str) -> tuple[int, Any]:
    """Return the exit code of the program and the JSON that it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = run([*words])
    return code, json.loads(output.getvalue())


def fitted_again(words: Iterable[str], capture: Path) -> tuple[int, Any]:
    """Return the exit code and the answer of ``fit`` on the recorded capture of the guest."""
    asked = "fit --json --goal pool --keep 0 --root".split()
    code, answer = _said(*asked, str(capture), *words)
    return code, flat(answer)


def replayed(capture: Path, *words: str) -> tuple[dict[str, Any], ...]:
    """The rows that are no skips, for the capture's own launch or the one in ``words``."""
    code, answer = _said("check", "--json", "--root", str(capture), *words)
    assert code in EXIT_CODES.values(), answer
    return tuple(in_texts(row) for row in answer["findings"] if row["status"] != "skip")


@cache
def recorded_experiments() -> Mapping[str, Measured]:
    rows = recorded("experiments").values()
    return {row["id"]: Measured(tuple(row["said"]), tuple(row["pages"])) for row in rows}


class _Recorded(Mapping[str, Any]):
    """By id; each is made when it is first asked for. folder: for captures."""

    kinds: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return (name for kind in self.kinds for name in recorded(kind))

    def __len__(self) -> int:
        return sum(len(recorded(kind)) for kind in self.kinds)

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            kind = next(kind for kind in self.kinds if name in recorded(kind))
            self._found[name] = self._again(kind, recorded(kind)[name])
        return self._found[name]

    def _again(self, kind: str, row: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _file(self, name: str) -> Path:
        file = self._folder / f"{name.replace('/', '-')}.tar.gz"
        file.write_bytes(capture(name))
        return file


class RecordedFaults(_Recorded):
    """``Seen`` by the id of a fault: what the check says of its captures, and what was done."""

    kinds = ("faults",)

    def _again(self, kind: str, row: dict[str, Any]) -> Seen:
        if row["impossible"]:
            return Seen(Answer(), impossible=row["impossible"])
        words = row["arguments"]
        return Seen(
            Answer(replayed(self._file(f"faults/{row['id']}"), *words)),
            None if row["mended"] is None else Answer(tuple(row["mended"])),
            Answer(tuple(row["then"])),
            tuple(row["done"]),
            row["broken_start"],
            row["mended_start"],
        )


class RecordedRehearsals(_Recorded):
    """The rows of rehearsals and fittings by id, with the answers as they would be today."""

    kinds = ("rehearsals", "fittings")

    def _again(self, kind: str, row: dict[str, Any]) -> dict[str, Any]:
        file = self._file(f"{kind}/{row['id']}")
        if kind == "rehearsals":
            return self._rehearsed(row["order"], row, file)
        rehearsed = []
        for number, one in enumerate(row["rehearsed"]):
            again = self._file(f"{kind}/{row['id']}/{number}")
            rehearsed.append(self._rehearsed({**row["order"], "processes": ()}, one, again))
        code, answer = fitted_again(row["order"]["words"], file)
        answer["written"] = row["answer"]["written"]  # nothing is written beside a capture
        return {**row, "code": code, "answer": answer, "rehearsed": rehearsed}

    def _rehearsed(self, order: Any, row: dict[str, Any], file: Path) -> dict[str, Any]:
        answer = answer_again(order, row["answer"], file)
        return {**row, "code": answer["exit_code"], "answer": answer}
