"""A launch may leave any flag or variable open: that is named, and is no defect of this program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
