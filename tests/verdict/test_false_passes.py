"""What other tools pass that should not pass, row by row, through the whole command.

The rows are those of a survey of the field's tools; each name says what the tool would have said.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import PATIENCE_SECONDS, SyntheticHost, build_host, tree_of
from tests.checks.test_synthetic import FITTED, LAUNCH


class Answer(NamedTuple):
    code: int
    statuses: dict[str, set[str]]
    found: dict[str, Any]


class Checking:
    """Runs ``check`` on a host with a launch; each call with other options."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path, self._capsys, self._count = path, capsys, 0

    def __call__(self, host: SyntheticHost, text: str | None, *options: str) -> Answer:
        self._count += 1
        folder = self._path / str(self._count)
        (folder / "tree").mkdir(parents=True)
        words = ["check", "--json", "--root", str(build_host(folder / "tree", host))]
        words += ["--timeout", str(PATIENCE_SECONDS), *options]
        if text is not None:
            (folder / "launch.sh").write_text(text)
            words += ["--mooncake-version", "0.3.13.post1", "--sglang-version", "0.5.23"]
            words.append(str(folder / "launch.sh"))
        code = run(words)
        found = json.loads(self._capsys.readouterr().out)
        statuses: dict[str, set[str]] = {}
        for finding in found.get("findings", ()):
            statuses.setdefault(finding["check"], set()).add(finding["status"])
        return Answer(code, statuses, found)


@pytest.fixture
def checking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checking:
    return Checking(tmp_path, capsys)


def test_no_checks_are_no_pass(checking: Checking) -> None:
    """LBNL NHC: "No checks means no failures", exit 0."""
    assert checking(FITTED, LAUNCH, "--only", "no-such-check").code == 64
    assert checking(FITTED, None, "--only", "storage.*").code == 3


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "#!/bin/bash\n", "echo hello\n", "if true; then\n"])
def test_an_empty_launch_is_no_launch_that_fits(checking: Checking, text: str) -> None:
    """troubleshoot: an empty or half-parsed spec exits 0."""
    assert checking(FITTED, text).code == 64


@pytest.mark.slow
def test_what_cannot_be_read_is_never_a_pass(checking: Checking) -> None:
    """The rule behind all rows: each file of the pools unreadable in turn."""
    for name in ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages"):
        path = f"/sys/kernel/mm/hugepages/hugepages-2048kB/{name}"
        found = checking(replace(FITTED, files={**FITTED.files, path: "garbage\n"}), LAUNCH)
        assert found.statuses["hugetlb.shortage"] == {"unknown"}, name
        assert found.code == 3


@pytest.mark.slow
def test_a_script_that_writes_the_pool_last_is_no_promise(checking: Checking) -> None:
    """A drop-in says enough, and a unit of this host's own then writes whatever its script says."""
    unit = "/etc/systemd/system/pages.service"
    line = "[Service]\nExecStart=/bin/sh -c '/opt/count > /proc/sys/vm/nr_hugepages'\n"
    found = checking(replace(FITTED, files={**FITTED.files, unit: line}), LAUNCH)
    assert found.statuses["hugetlb.after-reboot"] == {"warn"}
    known = line.replace("/opt/count", "echo 999999")
    found = checking(replace(FITTED, files={**FITTED.files, unit: known}), LAUNCH)
    assert found.statuses["hugetlb.after-reboot"] == {"pass"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("/0000:14:00.0/numa_node", "/sys/class/infiniband/mlx5_0/device/numa_node"),
        ("/uverbs0/ibdev", "/sys/class/infiniband_verbs/uverbs0/ibdev"),
        ("/proc/self/cgroup", "/proc/self/cgroup"),
        ("/proc/self/mountinfo", "/proc/self/mountinfo"),
        ("/proc/sys/vm/overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ],
)
def test_a_folder_in_place_of_a_file_is_unknown(checking: Checking, ending: str, said: str) -> None:
    """EISDIR, EIO and EACCES are alike: the first of these once ended the check with exit 70."""
    path = next(name for name in tree_of(FITTED).files if name.endswith(ending))
    host = replace(FITTED, files={**FITTED.files, path: None, f"{path}/x": ""})
    found = checking(host, LAUNCH)
    assert found.code == 3
    unknown = [row for row in found.found["findings"] if row["status"] == "unknown"]
    assert any(said in row["text"] for row in unknown)
