"""What goes to a node, what comes back of it, and what stands for a node without a report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from preflight.base.bundle import zipapp
from preflight.base.usage_error import UsageError
from preflight.command_inputs.launch_words import Chosen, Waiver
from preflight.fleet.over_ssh import check_arguments
from preflight.fleet.remote.program import SAYS, Program
from preflight.fleet.remote.reply import NodeReply, lacks_tool, node_answer
from preflight.fleet.reports.reading import ReportReader
from tests.builders.synthetic import PATIENCE_SECONDS
from tests.fleet.merge_fleets import line, report_of
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/check-v1.schema.json").read_text())
START = b"@mooncake-preflight start 10.0.0.9 4000 10.0.0.1 22"
END = b"@mooncake-preflight end "
WHOLE = line(report_of("x", 1)).encode()
ERROR = b'{"schema": "mooncake-preflight/check/v1", "version": "1", "status": "error", '
ERROR += b'"findings": [], "reason": "no such file", "answer": null}'

Lines = tuple[bytes, ...]


@each_row(
    ("lines", "code", "error", "carried", "check", "said"),
    [
        ((), 255, b"ssh: connect to a: No route to host", False, "fleet.ssh", "connect to a: No"),
        ((), 255, b"", False, "fleet.ssh", "ssh gave no reason"),
        ((), 255, b"\x1b[2Jwiped", False, "fleet.ssh", "\\x1b[2Jwiped"),
        ((), 76, b"", False, "fleet.ssh", "the gateway of ClusterShell's tree"),
        ((b"Welcome",), 1, b"no shell", False, "fleet.report", "exit code 1: no shell"),
        ((START,), 255, b"", False, "fleet.report", "before its report came"),
        ((START, WHOLE[:900]), 255, b"", False, "fleet.report", "in the middle of its report"),
        ((START, WHOLE[:900] + END + b"0"), 0, b"", False, "fleet.report", "truncated"),
        (
            (START, b'{"schema": "mooncake-preflight/check/v9"}' + END + b"0"),
            *(0, b"", False, "fleet.report", "of another version"),
        ),
        ((START, ERROR + END + b"64"), 0, b"", False, "fleet.report", "no verdict: no such file"),
        ((START, END + b"137"), 0, b"Killed", False, "fleet.report", "exit code 137 and no"),
        ((START, END + b"127"), 0, b"not found", False, "fleet.tool", "--remote-command"),
        ((START, END + b"127"), 0, b"not found", True, "fleet.python", "--remote-python"),
        (
            (START, END + b"1"),
            *(0, b"mooncake-preflight: needs Python 3.10 or newer, this is 3.6.8", True),
            *("fleet.python", "this is 3.6.8: give another"),
        ),
        ((START,), None, b"", False, "fleet.interrupted", "before it answered"),
    ],
)
def test_what_stands_for_a_node(
    lines: Lines, code: int | None, error: bytes, carried: bool, check: str, said: str
) -> None:
    """Each way in which an answer can be none."""
    found = node_answer(
        NodeReply("gpu1", lines, (error,), code, False, carried), 60, ReportReader()
    )
    assert (found.row.name, found.row.status, found.document) == ("gpu1", "unknown", None)
    (finding,) = found.row.findings
    assert (finding.check, said in finding.text) == (check, True), finding


def test_a_report_is_found_between_banners() -> None:
    """And goes by the name that the node was asked by, not by its own."""
    lines = (b"Welcome", START, b'{"schema": "motd"}', WHOLE + END + b"1", b"bye")
    found = node_answer(NodeReply("gpu007", lines, (), 0), 60, ReportReader())
    assert (found.row.name, found.row.status, found.row.host) == ("gpu007", "warn", "x")
    assert found.document == json.loads(WHOLE)


def test_a_program_that_is_not_there_is_carried() -> None:
    missing = NodeReply("a", (START, END + b"127"), (b"sh: not found",), 0)
    assert lacks_tool(missing)
    assert not lacks_tool(missing._replace(carried=True))
    assert not lacks_tool(NodeReply("a", (START, END + b"64"), (b"no such file",), 0))


SHELLS = ("sh", "bash", "zsh", "ksh", "tcsh", "fish", "busybox")


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_login_shell_runs_what_is_sent(tmp_path: Path, shell: str, joined: bool) -> None:
    """Whichever is here; busybox stands for all that a small distribution has."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    awkward = ("a  b", "x'y", "$HOME", "`id`")
    # echo is no help: shells differ in what they make of a backslash.
    tool = ("sh", "-c", 'cat; for word; do echo "<$word>"; done; exit 3', "tool")
    question = Program(tool, "", "never").question(awkward, b"read\n", False, joined)
    words = [program, *(["sh"] if shell == "busybox" else []), "-c", question.line]
    environment = {"PATH": os.environ["PATH"], "SSH_CONNECTION": "1 2 3 4"}
    done = subprocess.run(
        words,
        input=question.content,
        capture_output=True,
        env=environment,
        timeout=PATIENCE_SECONDS,
    )
    written = ["read", *(f"<{word}>" for word in awkward), f"{SAYS} end 3"]
    printed = ("" if joined else "\n").join(written)
    assert done.stdout.decode() == f"{SAYS} start 1 2 3 4\n{printed}\n"


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (Chosen(ignore=(Waiver("nosuch", "thing"),)), "no check has this id"),
        (Chosen(only=("memory.nosuch",)), "no check has such an id"),
    ],
)
def test_a_mistake_is_told_before_a_node_is_asked(chosen: Chosen, said: str) -> None:
    """Ten thousand nodes need not tell it."""
    with pytest.raises(UsageError, match=said):
        check_arguments(chosen, 10)
    assert check_arguments(Chosen(), 10) == ("check", "--json", "--timeout=10")


def run_carried(words: list[str], folder: Path) -> tuple[int, Any]:
    """Run what a node gets where the program is carried there, with a Python alone."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    (folder / "temporary").mkdir()
    question = Program((), str(python), "always").question(words, b"", True)
    done = subprocess.run(
        ["sh", "-c", question.line],
        input=question.content,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder / "temporary")},
    )
    assert list((folder / "temporary").iterdir()) == []
    reply = NodeReply("here", tuple(done.stdout.splitlines()), (done.stderr,), done.returncode)
    found = node_answer(reply, 60, ReportReader())
    return reply.end or 0, found


@pytest.mark.slow
def test_the_carried_program_needs_python_alone(tmp_path: Path) -> None:
    """-I -S: no package of this machine is seen; it says what the installed one says."""
    code, found = run_carried(["check", "--json"], tmp_path)
    assert found.document is not None, found.row.findings
    valid(found.document, SCHEMA)
    assert (code, found.row.name) == (found.document["exit_code"], "here")
    assert found.document["answer"]["machine"]["facts"]["kernel"] == os.uname().release


@pytest.mark.slow
def test_the_carried_program_is_the_same_bytes_each_time() -> None:
    """Python and tables, and of C only what any Python 3 can load."""
    made = zipapp()
    zipapp.cache_clear()
    assert made == zipapp()
    with zipfile.ZipFile(BytesIO(made)) as archive:
        names = archive.namelist()
    assert [name for name in names if name.endswith((".so", ".pyc"))] == [
        "psutil/_psutil_linux.abi3.so"
    ]
    assert {"__main__.py", "pynvml.py", "yaml/__init__.py"} <= {*names}
    assert len(names) == len({*names})
