"""The walks of ARCHITECTURE.md: their functions exist, run, and go one way."""

import contextlib
import io
import re
import sys
import threading
from itertools import groupby
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FrameType
from typing import Any

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import PATIENCE_SECONDS, build_host, gpu_host
from tests.house.test_layers import ORDER
from tests.paths import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
# Title of a walk -> the most steps that it may have, and the packages that it comes back to: the
# runner stands between what reads a topic and what judges it.
WALKS: dict[str, tuple[int, set[str]]] = {
    "One launch walked through": (12, set()),
    "One fact walked through": (8, {"hugetlb"}),
}
LAUNCH = """\
export MOONCAKE_MASTER=10.0.0.1:50051 MC_STORE_USE_HUGEPAGE=1 MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --enable-hierarchical-cache \\
  --hicache-size 60 --hicache-storage-backend mooncake
"""


def steps(title: str) -> list[str]:
    """Return the functions that a walk names, as ``preflight.host_tuning.plan.plan``."""
    section = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    named = re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)
    return [name if name.startswith("checks.") else f"preflight.{name}" for name in named]


def code_of(name: str) -> CodeType:
    """Return the code of a function, or of a method, by its whole name."""
    found: Any = resolve_name(name)
    code: CodeType = getattr(found, "__wrapped__", found).__code__
    return code


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_is_short_and_goes_one_way(title: str) -> None:
    found, (most, again) = steps(title), WALKS[title]
    assert 0 < len(found) <= most
    packages = [package for package, _ in groupby(name.split(".")[1] for name in found)]
    assert {one for one in packages if packages.count(one) > 1} == again


@pytest.mark.slow
def test_every_step_of_both_walks_runs(tmp_path: Path) -> None:
    """``plan --format sysctl`` goes through all of them (SGLang 0.5.9: ranks on any node)."""
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH)
    root = tmp_path / "host"
    root.mkdir()
    build_host(root, gpu_host())  # a folder: what reads the machine itself reads it
    wanted = {code_of(name): name for title in WALKS for name in steps(title)}
    seen: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in wanted:
            seen.add(wanted[frame.f_code])

    words = ["plan", "--format", "sysctl", "--timeout", str(PATIENCE_SECONDS), "--root", str(root)]
    words += ["--mooncake-version", "0.3.14", "--sglang-version", "0.5.9", str(script)]
    out = io.StringIO()
    threading.setprofile(look)  # topics are read side by side
    sys.setprofile(look)
    try:
        with contextlib.redirect_stdout(out):
            run(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert "vm.nr_hugepages = " in out.getvalue()
    assert set(wanted.values()) - seen == set()


def test_every_package_has_a_row() -> None:
    named = set(
        re.findall(r"`(\w+)`", PAGE.partition("## What is where")[2].partition("## One")[0])
    )
    assert {package.partition(".")[2] for package in ORDER} - named == set()
