"""Runs the experiments of the guests and records them: ``python -m tests.lab.record``, as root.

All of them, which takes half an hour on two processors that do nothing else; those of one kind
(experiments, rehearsals, faults, engines), with the kind as the first word; or some of them,
with their ids behind it. Tests hold what the program says against these records: an experiment that
is declared anew, or a remedy that is printed in other words, is to be recorded anew. Paths of the
machine that records are replaced by those that a host would have.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from checks.framework.archive import archive_bytes
from tests.lab.engines import ALL as ENGINES
from tests.lab.engines import Engine, engines_in, engines_script
from tests.lab.experiments import ALL as EXPERIMENTS
from tests.lab.experiments import Experiment
from tests.lab.fault_guest import (
    HEALTHY_LAUNCHES,
    IN_FULL,
    Answer,
    Seen,
    healthy_of,
    run_faults,
    started_of,
    with_arguments,
)
from tests.lab.faults import FAULTS, Fault
from tests.lab.measure import measure
from tests.lab.rehearsals import ALL as REHEARSALS
from tests.lab.rehearsals import FITTINGS, Fitting, Rehearsal
from tests.lab.rehearse_guest import FIRST_RELEASE, rehearsals_script, rehearsed_in
from tests.lab.results import DATA, Row, plain, record, record_captures
from tests.real.conftest import CACHE, install_release

# Emulated, and perhaps beside other work: it is not here that an experiment may take too long.
LIMIT_SECONDS = 4 * 3600
# File -> the fault that it shows, with all that is installed; as files that ``check --root`` reads.
SHOWN = {
    "pool-on-the-wrong-node": "pool on the wrong node",
    "memlock-for-one-nic": "memlock that holds for one NIC and not for two",
    "both-ports-down": "both ports down",
    "hugetlb-cgroup-limit": "hugetlb cgroup limit",
}
LOG_CHARACTERS = 3000
EVERY_FAULT = (IN_FULL, *HEALTHY_LAUNCHES, *FAULTS)
Kind = TypeVar("Kind", Experiment, Rehearsal, Fitting, Fault, Engine)


def main() -> None:
    kinds: dict[str, Callable[[Path, Collection[str]], None]] = {
        "experiments": experiments,
        "rehearsals": rehearsals,
        "faults": faults,
        "engines": engines,
    }
    kind, *ids = sys.argv[1:] or ("",)
    for name in [kind] if kind else kinds:
        with tempfile.TemporaryDirectory() as folder:
            kinds[name](Path(folder), ids)


def _chosen(every: Iterable[Kind], ids: Collection[str]) -> list[Kind]:
    """Return those of the ids; all where none is given."""
    return [one for one in every if not ids or one.id in ids]


def experiments(folder: Path, ids: Collection[str]) -> None:
    chosen = _chosen(EXPERIMENTS, ids)
    wheels = {release: install_release(release) for release in {one.release for one in chosen}}
    found = measure(chosen, wheels, folder, "", LIMIT_SECONDS)
    rows = [
        {"id": name, "order": plain(one), "said": found[name].said, "pages": found[name].pages}
        for name, one in ((one.id, one) for one in chosen)
        if name in found
    ]
    record("experiments", rows, [one.id for one in EXPERIMENTS])


def rehearsals(folder: Path, ids: Collection[str]) -> None:
    """Rehearsals and fittings, each with a capture of the guest before."""
    rehearsed, fitted = _chosen(REHEARSALS, ids), _chosen(FITTINGS, ids)
    releases = {FIRST_RELEASE} | {one.release for one in rehearsed}
    wheels = {release: install_release(release) for release in releases}
    then = rehearsals_script(rehearsed, fitted, wheels, folder, captured=True)
    measure((), wheels, folder, then, LIMIT_SECONDS)
    record_rehearsals(rehearsed_in(folder), folder)


def record_rehearsals(found: Mapping[str, Any], folder: Path) -> None:
    kinds: dict[str, tuple[Any, ...]] = {"rehearsals": REHEARSALS, "fittings": FITTINGS}
    for kind, every in kinds.items():
        rows, captures = [], {}
        for one in every:
            if one.id not in found:
                continue
            row = dict(found[one.id])
            captures[f"{kind}/{one.id}"] = _taken(row, folder)
            for number, more in enumerate(row.get("rehearsed", ())):
                captures[f"{kind}/{one.id}/{number}"] = _taken(more, folder)
            rows.append(moved_row({"id": one.id, "order": plain(one), **row}, folder))
        record(kind, rows, [one.id for one in every])
        record_captures(captures)


def _taken(row: Row, folder: Path) -> bytes:
    """Take the capture out of the row, and what tells nothing of the experiment."""
    content = base64.b64decode(row.pop("capture"))
    assert content, row["capture_said"]
    for name in ("capture_said", "errors", "said", "seconds", "rehearsal", "fitting"):
        row.pop(name, None)
    return moved(content, places(folder))


def faults(folder: Path, ids: Collection[str]) -> None:
    """Faults, and what is healthy, each with a capture of the guest as it is then."""
    chosen = _chosen(EVERY_FAULT, ids)
    shown = [
        replace(one, id=name, in_full=True, starts="", mends=False)
        for name, fault in SHOWN.items()
        for one in chosen
        if one.id == fault
    ]
    healthy = [healthy_of(one) for one in chosen if one.expect]
    every = dict.fromkeys(replace(one, captured=True) for one in (*healthy, *chosen, *shown))
    seen = run_faults(every, install_release(FIRST_RELEASE), folder, LIMIT_SECONDS)
    for name, fault in {"healthy": IN_FULL.id, **dict(zip(SHOWN, SHOWN, strict=True))}.items():
        if fault in seen:
            assert not seen[fault].defect, seen[fault].defect
            content = moved(seen[fault].capture, places(folder))
            (DATA / f"{name}.tar.gz").write_bytes(content)
    record_faults(seen, folder)


def record_faults(seen: Mapping[str, Seen], folder: Path) -> None:
    rows, captures = [], {}
    for one in EVERY_FAULT:
        if one.id not in seen:
            continue
        found = seen[one.id]
        assert not found.defect, (one.id, found.defect)
        row = {
            "id": one.id,
            "order": plain(one),
            "arguments": with_arguments(one).arguments,
            "started": started_of(one),
            "impossible": found.impossible,
            "then": _said(found.broken),
            "mended": None if found.mended is None else _said(found.mended),
            "done": found.done,
            "broken_start": _short(found.broken_start),
            "mended_start": _short(found.mended_start),
        }
        rows.append(moved_row(row, folder))
        if found.capture:
            captures[f"faults/{one.id}"] = moved(found.capture, places(folder))
    record("faults", rows, [one.id for one in EVERY_FAULT])
    record_captures(captures)


def engines(folder: Path, ids: Collection[str]) -> None:
    chosen = _chosen(ENGINES, ids)
    wheel = install_release(FIRST_RELEASE)
    measure((), {}, folder, engines_script(chosen, wheel, folder), LIMIT_SECONDS)
    found = engines_in(folder)
    rows = [{"id": one.id, "order": plain(one), **found[one.id]} for one in chosen]
    record("engines", rows, [one.id for one in ENGINES])


def _said(answer: Answer) -> list[Row]:
    kept = ("check", "status", "subject")
    return [{name: row[name] for name in kept} for row in answer.rows if row["status"] != "pass"]


def _short(start: Mapping[str, Any]) -> Row:
    return {**start, "log": start["log"][-LOG_CHARACTERS:]} if start else {}


def places(folder: Path) -> dict[str, str]:
    """Path of the machine that records -> the one in its place."""
    return {
        str(CACHE): "/opt/mooncake",
        str(folder): "/run/lab",
        sys.prefix: "/opt/mooncake-preflight",
        sys.base_prefix: "/usr/local",
        str(Path(__file__).parents[2]): "/opt/source",
    }


def moved_row(row: Row, folder: Path) -> Row:
    text = json.dumps(row)
    for here, there in places(folder).items():
        text = text.replace(here, there)
    found: Row = json.loads(text)
    return found


def moved(capture: bytes, places: Mapping[str, str]) -> bytes:
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(capture)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                content = file.read()
                for here, there in places.items():
                    content = content.replace(here.encode(), there.encode())
                files[member.name] = content
    return archive_bytes(files)


if __name__ == "__main__":
    main()
