"""What the program says today of what was recorded in the guests, as the tests look at it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from preflight.check.report import EXIT_CODES
from preflight.cli.main import run
from tests.lab.fault_guest import Answer, Seen
from tests.lab.measure import Measured
from tests.lab.rehearse_replayed import answer_again, fitted_again
from tests.lab.results import capture, recorded
from tests.rows import in_texts


def replayed(capture: Path, *words: str) -> tuple[dict[str, Any], ...]:
    """The rows that are no skips, for the capture's own launch or the one in ``words``."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = run(["check", "--json", "--root", str(capture), *words])
    assert code in EXIT_CODES.values(), output.getvalue()
    findings = json.loads(output.getvalue())["findings"]
    return tuple(in_texts(row) for row in findings if row["status"] != "skip")


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
