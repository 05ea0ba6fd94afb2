"""What Python and other programs start of a text or file that a command names."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.launches import shell_blocks
from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading
from tests.builders.launched import ids, written
from tests.tables import each_row


def reading(tmp_path: Path, script: str) -> Reading:
    (tmp_path / "launch.sh").write_text(script)
    return read_source(str(tmp_path / "launch.sh"), {})


WAITS = "n=0; while [ $n -lt 150 ]; do n=$((n+1)); curl -s localhost:1; sleep 1; done\n"


def test_loops_that_only_wait_leave_the_turns_to_those_that_start_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was read behind them before: so many turns were all that was followed."""
    monkeypatch.setattr(shell_blocks, "MOST_TURNS", 100)
    path = written(tmp_path, f"{WAITS * 2}for i in 1 2 3; do mooncake_client --port=$i & done\n")
    reading = read_source(str(path), {})
    assert [c.words[1].text for c in reading.commands if c.words[0].text == "mooncake_client"] == [
        "--port=1", "--port=2", "--port=3",
    ]  # fmt: skip
    assert not [note for note in reading.notes if note.id == "loop-not-counted"]


ENGINE = "import sglang\nsglang.Engine(model_path='m', hicache_size=4)\n"


POD = """apiVersion: v1
kind: Pod
metadata: {name: store}
spec:
  containers: [{name: store, image: "$IMAGE", command: [mooncake_client, --port=7]}]
"""


@each_row(
    "kubectl",
    [
        "kubectl apply -f - <<Y\n%sY",
        "cat <<Y | kubectl -n a create --filename=-\n%sY",
        "kubectl replace --force -f - <<'Y'\n%sY",
    ],
)
def test_a_manifest_on_standard_input_is_read(tmp_path: Path, kubectl: str) -> None:
    """As the same manifest in a file; its lines are those of the script."""
    found = reading(tmp_path, f"IMAGE=x/y:1\n{kubectl % POD}")
    (command,) = found.commands[-1:]
    assert [word.text for word in command.words] == ["mooncake_client", "--port=7"]
    assert command.container is not None
    assert command.container.image == ("$IMAGE" if "'Y'" in kubectl else "x/y:1")
    assert (command.origin.line, command.waited, found.notes) == (7, False, ())


@each_row(
    "script",
    [
        f"kubectl apply -f - <<Y\n{POD}Y",  # IMAGE is not known
        f"kubectl apply -f other.yaml -f - <<'Y'\n{POD}Y",
        "kubectl apply -f - <<'Y'\nkind: [\nY",
        "helm template x | kubectl apply -f -",
    ],
)
def test_a_manifest_on_standard_input_that_is_not_known_is_named(
    tmp_path: Path, script: str
) -> None:
    assert "script-not-read" in ids(reading(tmp_path, script))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"python3 - <<'P'\n{ENGINE}P", "python3 -m sglang.launch_server --model-path m"),
        (f'python3 -c "{ENGINE}"', "python3 -m sglang.launch_server --model-path m"),
        ("uv run start.py", "mooncake_client --port 7"),
        (".venv/bin/python3.12 -u start.py --x &", "mooncake_client --port 7"),
        ("./start.py", "mooncake_client --port 7"),
        ("python -c \"import os; os.system('mooncake_client &')\"", "mooncake_client"),
    ],
)  # fmt: skip
def test_what_python_starts_beside_a_server_is_read(
    tmp_path: Path, script: str, words: str
) -> None:
    popen = "import subprocess\nsubprocess.Popen(['mooncake_client', '--port', '%s'])\n"
    (tmp_path / "start.py").write_text(popen % 7)
    found = reading(tmp_path, script)
    assert [" ".join(w.text for w in c.words)[: len(words)] for c in found.commands] == [words]
    assert found.notes == ()


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
