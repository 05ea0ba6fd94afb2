"""/proc that hides other users' processes (hidepid=2), or all but processes (ProcSubset=pid)."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.command_inputs.host_source import recorded_launch
from preflight.command_inputs.launch_words import LaunchWords
from tests import rows
from tests.checks.test_recorded_hosts import LAUNCH

NOBODY = "65534"
CHECK = """\
mount -t proc -o {options} proc /proc || exit 99
cd / && exec setpriv --reuid={user} --regid={user} --clear-groups env -i PATH=/usr/bin:/bin \\
  /usr/bin/python3 {folder}/preflight check --json {folder}/launch.json
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The one file and a launch, where anybody may read them."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        place = Path(name)
        (place / "launch.sh").write_text(LAUNCH)
        record = recorded_launch(LaunchWords((str(place / "launch.sh"),)))
        (place / "launch.json").write_bytes(record or b"")
        assert run(["bundle", str(place / "preflight")]) == 0
        yield place


def statuses(folder: Path, options: str) -> dict[str, set[str]]:
    if os.geteuid() or shutil.which("setpriv") is None or not os.path.exists("/usr/bin/python3"):
        pytest.skip("not root, or no setpriv or /usr/bin/python3")
    script = CHECK.format(options=options, user=NOBODY, folder=folder)
    command = ["unshare", "--mount", "--pid", "--fork", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    if not done.stdout:
        pytest.skip(f"no /proc of its own, or a Python that is too old: {done.stderr}")
    return rows.statuses(done.stdout)


@pytest.mark.slow
def test_who_hides_processes_changes_no_verdict(folder: Path) -> None:
    """This user's own threads are counted, and what nobody shows is not taken for absent."""
    hidden, open_ = statuses(folder, "hidepid=2"), statuses(folder, "hidepid=0")
    # Which are of processes; others follow from what else runs meanwhile.
    limits = {check for check in open_ if check.startswith(("limits.", "memlock."))}
    assert len(limits) > 6
    assert {check: hidden[check] for check in limits} == {check: open_[check] for check in limits}


@pytest.mark.slow
def test_a_proc_without_the_kernels_files_leaves_them_unknown(folder: Path) -> None:
    reduced = statuses(folder, "subset=pid")
    for check in ("memory.host", "memory.max-map-count", "memory.overcommit", "system.kernel-old"):
        assert reduced[check] == {"unknown"}, check
