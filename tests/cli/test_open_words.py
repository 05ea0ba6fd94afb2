"""A launch may leave any flag or variable open: that is named, and is no defect of this program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.processes.processes import GFLAGS_PROGRAMS
from preflight.programs.mooncake_flags import flags_of
from preflight.programs.sglang_argument_tables import argument_names
from preflight.rules.variables import known_variables

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
# Several at once, as one may hide another: each size hides others.
SOME, MANY = 40, 100


def with_flags(size: int) -> list[str]:
    """Return each program with so many of its flags left open."""
    return [
        " ".join((program, *some)) for program, all_ in FLAGS.items() for some in chunks(all_, size)
    ]


@pytest.mark.slow
def test_a_flag_that_is_left_open_is_read(tmp_path: Path) -> None:
    assert len(with_flags(1)) > 500
    assert wrong(with_flags(SOME), ["read", "-v"], tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [SERVER, CLIENT, SERVICE, VLLM])
def test_variables_that_are_left_open_are_read(command: str, tmp_path: Path) -> None:
    some = [
        "".join(f"export {name}=$P\n" for name in names) + command
        for names in chunks(known_variables(), 60)
    ]
    assert wrong(some, ["read", "-v"], tmp_path) == []


@pytest.mark.slow
def test_what_is_left_open_is_judged(tmp_path: Path) -> None:
    some = [
        "".join(f"export {name}=$P\n" for name in names) + command
        for names in chunks(known_variables(), 180)
        for command in (SERVER, CLIENT, SERVICE, VLLM)
    ]
    some += with_flags(MANY)
    assert wrong(some, ["check", "--root", "demo:h800"], tmp_path) == []


def chunks(names: Iterable[str], size: int) -> Iterator[list[str]]:
    left = list(names)
    return (left[start : start + size] for start in range(0, len(left), size))


def wrong(launches: Sequence[str], words: Sequence[str], folder: Path) -> list[tuple[str, int]]:
    """Return the launches that end with anything but an answer or a usage error."""
    path = folder / "launch.sh"
    found = []
    for launch in launches:
        path.write_text(f"{launch}\n")
        code = run([*words, str(path)])
        if code not in (0, 1, 2, 3, 64):
            found.append((launch, code))
    return found
