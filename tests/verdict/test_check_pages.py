"""What ``check`` prints: whole in ordinary situations (tests/data/pages, to be read as text), and
short over real launches.

After a change that is meant, write the pages anew: PREFLIGHT_WRITE_PAGES=yes pytest, and read the
difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from preflight.cli.main import run
from preflight.cli.sizing import run as sizing
from preflight.report.to_text import SCREEN_LINES
from tests.builders.synthetic import (
    GIB,
    MIB,
    PATIENCE_SECONDS,
    SyntheticHost,
    build_host,
    erdma_host,
    gpu_host,
    limited_container,
    plain_host,
)
from tests.checks.test_synthetic import FITTED, LAUNCH
from tests.paths import ROOT

Patch = pytest.MonkeyPatch
Out = pytest.CaptureFixture[str]
pytestmark = pytest.mark.slow

PAGES = ROOT / "tests/data/pages"
WRITE = os.environ.get("PREFLIGHT_WRITE_PAGES") == "yes"
VERSIONS = ("--mooncake-version", "0.3.13.post1", "--sglang-version", "0.5.23")
# Numbers of a release of this program, which are nobody's promise.
COUNTS = re.compile(r"\d+(\s+)(pass|skip)")

# Those of files that a finding names; commands name others.
PATHS = re.compile(r"/(?:dev|proc)/[\w/.-]*\w")


class Situation(NamedTuple):
    """launch: the text of launch.sh, "" for a check of the host alone. usual: fits a screen."""

    host: Callable[[], SyntheticHost]
    launch: str = LAUNCH
    options: tuple[str, ...] = ()
    usual: bool = False


def with_nics(**fields: object) -> SyntheticHost:
    return replace(FITTED, nics=[nic._replace(**fields) for nic in FITTED.nics])  # type: ignore[arg-type]


LOGIN = replace(FITTED, memlock=("8388608", "8388608"), uid=1000, capabilities=0)
SITUATIONS = {
    "passes": Situation(lambda: FITTED, usual=True),
    "memlock-of-a-login": Situation(lambda: LOGIN, usual=True),
    "eight-ports-down": Situation(
        lambda: with_nics(state="1: DOWN", physical_state="3: Disabled"), usual=True
    ),
    "no-huge-pages": Situation(
        lambda: replace(FITTED, pools={2 * MIB: 0, GIB: 0}), LAUNCH, usual=True
    ),
    "few-open-files": Situation(lambda: replace(FITTED, nofile=("1024", "4096")), usual=True),
    "container-without-anything": Situation(limited_container),
    "docker": Situation(
        lambda: replace(LOGIN, uid=0, container="docker", shm_bytes=64 * MIB), usual=True
    ),
    "pod": Situation(
        lambda: replace(
            FITTED, container="kubernetes", shm_bytes=64 * MIB, cgroup={"memory.max": f"{64 * GIB}"}
        ),
        usual=True,
    ),
    "laptop": Situation(plain_host),
    "cloud-instance": Situation(erdma_host),
    "no-launch": Situation(gpu_host, "", usual=True),
    "variable-not-set": Situation(
        lambda: FITTED, LAUNCH.replace("--hicache-size 30", "--hicache-size $L2"), usual=True
    ),
    "neither-hicache-nor-mooncake": Situation(
        gpu_host,
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 "
        "--chunked-prefil-size 1",
        usual=True,
    ),
    "waived": Situation(
        lambda: LOGIN, options=("--ignore", "memlock.limit=ticket 12, until May"), usual=True
    ),
}


HOST = ("--root", "host", "--timeout", str(PATIENCE_SECONDS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a situation: its host, and launch.sh where it has one."""

    @cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        (folder / "host").mkdir()
        build_host(folder / "host", SITUATIONS[name].host())
        if SITUATIONS[name].launch:
            (folder / "launch.sh").write_text(f"{SITUATIONS[name].launch}\n")
        return folder

    return made


def said(name: str) -> list[str]:
    """Return the words of the launch of a situation."""
    return [*VERSIONS, "launch.sh"] if SITUATIONS[name].launch else []


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_page(
    name: str, folder: Callable[[str], Path], monkeypatch: Patch, capsys: Out
) -> None:
    """And no word is cut in two: each path is one of the same answer as JSON."""
    situation = SITUATIONS[name]
    monkeypatch.chdir(folder(name))
    words = ["check", *HOST, *situation.options, *said(name)]
    run([*words, "--json"])
    known = set(re.findall(PATHS, capsys.readouterr().out))
    run([*words, "--format", "npd"])
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        run([*words, "-v"])
        text = capsys.readouterr().out
        assert set(re.findall(PATHS, text)) <= known
        assert re.findall(r"\w\.\.\.$", text, re.MULTILINE) == []
        code = run(words)
        printed = COUNTS.sub(r"N\1\2", capsys.readouterr().out)
        page = PAGES / f"{name}.{width}.txt"
        if WRITE:
            page.write_text(printed)
        assert printed == page.read_text()
        assert printed.startswith(("PASS", "WARN", "FAIL", "UNKNOWN")[code])
        lines = printed.splitlines()
        commands = [at for at, line in enumerate(lines, 1) if re.match(r" {6}\S", line)]
        assert all(len(line) <= width for at, line in enumerate(lines, 1) if at not in commands)
        if situation.usual:
            assert len(lines) <= SCREEN_LINES
            assert not commands or commands[0] <= 15


# Those whose hosts and launches differ.
DIFFERENT = (
    *("passes", "container-without-anything", "laptop", "cloud-instance", "no-launch"),
    *("variable-not-set", "neither-hicache-nor-mooncake"),
)


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_line_is_wider_than_the_terminal(
    name: str, folder: Callable[[str], Path], monkeypatch: Patch, capsys: Out
) -> None:
    """At 60 columns, but for a command, which is to be copied, and for a word that is longer."""
    monkeypatch.chdir(folder(name))
    monkeypatch.setenv("COLUMNS", "60")
    launch = said(name)
    asked = [["check", "-v", *HOST, *launch]]
    if name in DIFFERENT:
        asked += [["topology", *HOST]]
        asked += [[command, *HOST, *launch] for command in ("plan", "capacity") if launch]
    if name == DIFFERENT[0]:
        asked += [["explain", "--advisories"]]
    for words in asked:
        run(words)
    if launch and name in DIFFERENT:
        sizing([*HOST, *launch])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 90
    wide = [line for line in lines if len(line) > 60 and not line.startswith("      ")]
    assert [line for line in wide if len(line.split()) > 1] == []


LAUNCHES = sorted(
    path
    for folder in ("launches", "silent")
    for path in (ROOT / "tests/data" / folder).iterdir()
    if path.suffix in (".sh", ".yaml", ".sbatch", ".bash", ".service", ".py")
)
MOST_LINES = 45
# Of longer ones the verdict itself is wider than 80 columns.
LONGEST_NAME = 24
STEP = re.compile(r" ?\d+\. (.*)")


# A wider terminal has fewer lines and more room: a few show that the width is asked for.
@pytest.mark.parametrize(
    ("path", "width"),
    [*((path, 80) for path in LAUNCHES), *((path, 100) for path in LAUNCHES[::8])],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_answer_is_a_page(path: Path, width: int, monkeypatch: Patch, capsys: Out) -> None:
    """Commands alone may be wider: they are to be copied."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(path.parent)
    run(["check", "--root", "demo:h800", path.name])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= MOST_LINES
    if len(path.name) < LONGEST_NAME and lines and not lines[0].startswith("PASS"):
        assert lines[1].strip().startswith("read: ")  # the verdict takes one line
    assert [line for line in lines if len(line) > width and not line.startswith("      ")] == []
    steps = [step[1] for line in lines if (step := STEP.fullmatch(line))]
    assert len(set(steps)) == len(steps)
    assert [step for step in steps if ":" not in step and "(" not in step] == []
