"""What is made of the nodes' reports, however they came: a folder of them, and one answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.node.records import Json
from preflight.fleet.node.report import one_line


class Shown(NamedTuple):
    """How the answer is asked for. reports: a folder to keep each node's report in."""

    reports: str | None
    as_json: bool
    color: str
    verbosity: int


def prepare(shown: Shown) -> None:
    """Before a node is asked: the work of all must not end with a folder that cannot be made."""
    folder = shown.reports
    if folder is None:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise UsageError(f"--reports {folder}: {error.strerror}") from None


def answer(reports: Sequence[Json], shown: Shown) -> int:
    """Keep the reports, print what they come to together; returns its exit code."""
    from preflight.fleet.merge.command import run_merge

    with _folder(shown.reports) as folder:
        # Those of this run alone: the folder may have others of an earlier one.
        paths = tuple(keep(report, folder) for report in reports)
        return run_merge(paths, as_json=shown.as_json, color=shown.color, verbosity=shown.verbosity)


@contextmanager
def _folder(named: str | None) -> Iterator[str]:
    if named is not None:
        yield named
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mooncake-preflight.") as folder:
        yield folder


def keep(report: Json, folder: str) -> str:
    """Its path: one file a node, whole or not there."""
    from checks.base.archive import write_whole

    path = os.path.join(folder, f"{report['node']}.json")
    try:
        write_whole(path, f"{one_line(report)}\n".encode(), mode=0o644)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path


def interrupted(reports: Sequence[Json], number: int) -> int:
    """Say how many are missing; the exit code of an interruption."""
    from preflight.fleet.node.reply import INTERRUPTED

    missing = sum(
        any(finding["check"] == INTERRUPTED for finding in report["findings"]) for report in reports
    )
    text = f"mooncake-preflight: interrupted: {missing} of {len(reports)} nodes gave no report"
    say(text, err=True)
    return 128 + number
