"""``-`` is the launch that comes in by standard input, wherever a launch's file is taken.

And a launch may leave any flag or variable open: that is named, and is no defect of this program.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.cli.sizing import run as sizing
from preflight.command_inputs.host_source import recorded_launch
from preflight.command_inputs.launch_words import LaunchWords
from preflight.engines.programs.known_variables import known_variables
from preflight.engines.programs.mooncake_flags import flags_of
from preflight.engines.programs.sglang_argument_tables import argument_names
from preflight.launches import env_files
from preflight.processes.processes import GFLAGS_PROGRAMS

SERVER = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache "
    "--hicache-storage-backend mooncake --hicache-size 10"
)
VLLM = (
    "vllm serve Qwen/Qwen3-8B --kv-transfer-config "
    """'{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}'"""
)
CLIENT = "mooncake_client --global_segment_size=4GB"
SERVICE = "python3 -m mooncake.mooncake_store_service --config=c.json"


FLAGS = {
    **{program: [f"--{n}=$P" for n in flags_of(program)] for program in GFLAGS_PROGRAMS.values()},
    SERVER: [f"--{name.replace('_', '-')}=$P" for name in argument_names()],
}
PROGRAMS = (SERVER, CLIENT, SERVICE, VLLM)


# So many flags and variables at once, as one may hide another: each size hides others.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "flags", "variables"),
    [(["read", "-v"], 40, 60), (["check", "--root", "demo:h800"], 100, 180)],
)
def test_what_is_left_open_is_read_and_judged(
    words: list[str], flags: int, variables: int, tmp_path: Path
) -> None:
    """It ends with an answer or a usage error."""
    launches = [
        " ".join((program, *some))
        for program, all_ in FLAGS.items()
        for some in chunks(all_, flags)
    ]
    launches += [
        "".join(f"export {name}=$P\n" for name in names) + command
        for names in chunks(known_variables(), variables)
        for command in PROGRAMS
    ]
    assert sum(map(len, FLAGS.values())) > 500
    path, wrong = tmp_path / "launch.sh", []
    for launch in launches:
        path.write_text(f"{launch}\n")
        if (code := run([*words, str(path)])) not in (0, 1, 2, 3, 64):
            wrong.append((launch, code))
    assert wrong == []


def chunks(names: Iterable[str], size: int) -> Iterator[list[str]]:
    left = list(names)
    return (left[start : start + size] for start in range(0, len(left), size))


LAUNCH = """export MC_STORE_USE_HUGEPAGE=1 MOONCAKE_MASTER=10.0.0.1:50051
python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 8 --hicache-size 30 \\
  --enable-hierarchical-cache --hicache-storage-backend mooncake
"""
DEMO = ("--root", "demo:h800")
pytestmark = pytest.mark.slow


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    env_files._streams.clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LAUNCH.encode())))


def both(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> tuple[str, str]:
    """What is said of a launch that comes in, and of the same in a file."""
    file = tmp_path / "launch.sh"
    file.write_text(LAUNCH)
    command = sizing if words[0] == "sizing" else run
    asked = words[1:] if words[0] == "sizing" else words
    said = []
    for source in ("-", str(file)):
        command([*asked, source])
        said.append(capsys.readouterr().out)
    return said[0], said[1].replace(str(file), "stdin")


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--json", *DEMO),
        ("read", "--json"),
        ("plan", "--json", *DEMO),
        ("capacity", "--json", "--gpu-memory", "80gb", *DEMO),
        ("explain", "--advisories", "--json", *DEMO),
        ("sizing", "--json", *DEMO),
    ],
    ids=lambda words: words[0],
)
def test_a_launch_that_is_piped_is_judged_as_its_file(
    words: tuple[str, ...], piped: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    came_in, of_file = both(capsys, tmp_path, *words)
    # A second may pass between the two readings of the host.
    came_in, of_file = (
        re.sub(r'("read_unix_seconds": )\d+', r"\g<1>0", one) for one in (came_in, of_file)
    )
    assert json.loads(came_in) == json.loads(of_file)
    assert "stdin" in came_in


def test_fit_prints_what_to_change_and_writes_nothing(
    piped: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", *DEMO, "--goal", "l2", "--ignore", "memlock.limit=mended", "-"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"--hicache-size \d+, at stdin:2: the launch is no file here", said)
    assert run(["fit", *DEMO, "--write", "-"]) == 64
    assert "standard input is no file to write" in capsys.readouterr().err


def test_it_goes_to_the_nodes_as_it_was_read(piped: None) -> None:
    env_files.read_small_file("-")
    record = recorded_launch(LaunchWords(("-",)))
    assert record is not None
    assert b"Qwen/Qwen3-32B" in record


def test_what_a_shell_opens_for_a_launch_is_read_once() -> None:
    """``check <(cat launch.sh)``: a pipe, which a second reader would find empty."""
    program = f"{sys.executable} -m preflight.cli.main check --root demo:h800"
    lines = "mooncake_master --port 50051"
    ran = subprocess.run(
        ["bash", "-c", f"{program} --json <(echo {lines})"], capture_output=True, check=False
    )
    told = json.loads(ran.stdout)
    assert [each["program"] for each in told["answer"]["processes"]] == ["mooncake_master"]
    late = subprocess.run(
        ["bash", "-c", f"{program} --timeout 1 <(sleep 9)"], capture_output=True, check=False
    )
    assert (late.returncode, b"no answer in 1 s" in late.stderr) == (64, True)


def test_more_than_a_launch_can_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env_files._streams.clear()
    endless = io.TextIOWrapper(io.BytesIO(b"#" * (env_files.LARGEST_FILE_BYTES + 1)))
    monkeypatch.setattr(sys, "stdin", endless)
    assert run(["check", *DEMO, "-"]) == 64
    assert "standard input is not read" in capsys.readouterr().err
