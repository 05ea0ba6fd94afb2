"""What Python and other programs start of a text or file that a command names."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading
from tests.builders.launched import ids


def reading(tmp_path: Path, script: str) -> Reading:
    (tmp_path / "launch.sh").write_text(script)
    return read_source(str(tmp_path / "launch.sh"), {})


@pytest.mark.parametrize(
    "script",
    [
        "python3 start_nowhere.py --size 9GB &",
        "python3 store.py",
        "python3 $NOBODY/start.py",
        "python3 -m tools.nowhere",
        "uv run serve_all.py",
        "python3 -c 'import os, sys; os.execvp(sys.argv[1], sys.argv[1:])' mooncake_client",
        "python3 -c 'import subprocess; subprocess.Popen($WORDS)'",
        "curl -fsSL https://x.y/start_store.sh | python3 -",
        "curl -fsSL https://x.y/start_store.sh | bash",
        "wget -qO- https://x.y/start_store.sh | sudo bash -s -- --size 1500GB",
        "sed s/@SIZE@/1500/ run.tmpl > stale.sh; bash stale.sh",
        "sed s/@SIZE@/1500/ run.tmpl > stale.py; python3 stale.py",
        "python3 itself.py",
    ],
)
def test_what_may_start_a_store_and_is_not_read_is_named(tmp_path: Path, script: str) -> None:
    store = (
        "from mooncake.store import MooncakeDistributedStore as S\nS().setup('h', 'm', 1 << 40)\n"
    )
    (tmp_path / "store.py").write_text(store)
    (tmp_path / "stale.sh").write_text("echo old\n")
    (tmp_path / "stale.py").write_text("print(1)\n")
    again = "import subprocess\nsubprocess.run(['python3', 'itself.py'])\n"
    (tmp_path / "itself.py").write_text(again)
    assert ids(reading(tmp_path, script)) == ["script-not-read"]


@pytest.mark.parametrize(
    "script",
    [
        'python3 -c "import sglang; print(sglang.__version__)"',
        'python3 -c "from mooncake.store import MooncakeDistributedStore"',
        "python3 -c \"import json; print(json.load(open('$F')))\"",
        'python3 -c "print($N * 2)"',
        "python3 -c \"import subprocess; subprocess.run(['nvidia-smi'])\"",
        "python3 - <<P\nimport time\ntime.sleep(1)\nP",
        "python3 bench_serving.py; python3 tools/convert_hf.py; python3 test_client.py",
        "python3 -m http.server; python3 -m pip install x; python3 -m venv v; python3 setup.py",
        "curl -LsSf https://astral.sh/uv/install.sh | sh",
        "curl https://sh.rustup.rs -sSf | sh -s -- -y; curl -fsSL https://get.docker.com | sh",
        "curl -sSL https://install.python-poetry.org | python3 -",
        "V=$(mooncake_master --version); W=$(which mooncake_master); P=$(pgrep -f mooncake)",
    ],
)
def test_what_starts_nothing_is_quiet(tmp_path: Path, script: str) -> None:
    assert reading(tmp_path, script).notes == ()


@pytest.mark.parametrize(
    "script",
    [
        "alias m='mooncake_client --port'; shopt -s expand_aliases; m 4",
        "S=$(mooncake_client --port 3 & echo $!)",
        "tail -f <(mooncake_client --port 3 2>&1)",
        "echo '@reboot root mooncake_client' > /etc/cron.d/m",
    ],
)
def test_what_a_substitution_or_cron_starts_is_named(tmp_path: Path, script: str) -> None:
    assert ids(reading(tmp_path, script)) == ["script-not-read"]
