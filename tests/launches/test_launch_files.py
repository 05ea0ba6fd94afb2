"""The published launches parse to the programs, flags and settings that their guides give."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from preflight.launches.launch_files import read_source
from preflight.launches.source import Command, Reading, SourceError
from tests.builders.launched import argv, argvs, variables
from tests.paths import ROOT
from tests.tables import each_row

LAUNCHES = ROOT / "tests/data/launches"
SEEDS = ROOT.parent / "shared" / "seeds"

SERVER = "sglang.launch_server"
MASTER_ADDRESS = {"MOONCAKE_MASTER": "127.0.0.1:50051"}
DGX = {
    **MASTER_ADDRESS,
    "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0",
    "MOONCAKE_PROTOCOL": "rdma",
    "MOONCAKE_DEVICE": "ibp12s0,ibp75s0",
}
OFFLOAD = {
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/mnt/data/file_storage",
    "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "21474836480",
    "MOONCAKE_USE_URING": "1",
}
CACHE = "--enable-hierarchical-cache"
DGX_FLAGS = "--model-path $MODEL_PATH --tp 1 --page-size 64 --attention-backend triton"
DGX_CLIENT = (
    "--host=127.0.0.1 --global_segment_size=80GB --master_server_address=localhost:50051 "
    "--metadata_server=P2PHANDSHAKE --protocol=rdma --device_names=ibp12s0,ibp75s0"
)
DGX_MASTER = "-http_metadata_server_port=8081 -metrics_port=9004 -logtostderr"
R1 = "--model-path /xxx/DeepSeek-R1/"
R1_FLAGS = "--hicache-ratio 2 --hicache-size 0 --hicache-io-backend direct "
R1_FLAGS += "--hicache-write-policy write_through --hicache-storage-backend hf3fs "
R1_FLAGS += "--hicache-storage-prefetch-policy wait_complete"
SERVED = "--host 0.0.0.0 --port 10000 --enable-metrics --enable-cache-report"
QUICK = "--model-path [model_path] --page-size 64"
QUICK_CACHE = (
    f"{CACHE} --hicache-storage-prefetch-policy timeout --hicache-storage-backend mooncake"
)
PREFETCH = "--hicache-storage-prefetch-policy"

Started = tuple[str, str, dict[str, str]]


def started(program: str, arguments: str, environment: dict[str, str] | None = None) -> Started:
    return program, arguments, environment or {}


server = partial(started, SERVER)
# Of some files, each command: program, arguments (JSON apart), and what the script sets for it.
EXPECTED: dict[str, list[Started]] = {
    "dgx-l1-l2-mooncake-ssd": [
        started("mooncake_master", f"-enable_offload=true {DGX_MASTER}"),
        started(
            "mooncake_client",
            f"{DGX_CLIENT} --enable_offload=true --port=50052 --logtostderr",
            OFFLOAD,
        ),
        server(
            f"{DGX_FLAGS} {CACHE} --hicache-ratio 2 {PREFETCH} wait_complete "
            "--hicache-mem-layout page_first_direct --hicache-storage-backend mooncake",
            DGX,
        ),
    ],
    "quick-start-prefill-decode": [
        started("mooncake_master", "--enable_http_metadata_server=true"),
        server(
            f"{QUICK} {QUICK_CACHE} --disaggregation-mode prefill "
            "--disaggregation-ib-device mlx5_1 --base-gpu-id 0 --port 30000",
            MASTER_ADDRESS,
        ),
        server(
            f"{QUICK} --disaggregation-mode decode --disaggregation-ib-device mlx5_1 "
            "--base-gpu-id 1 --port 30001"
        ),
        started(
            "sglang_router.launch_router",
            "--pd-disaggregation --prefill http://127.0.0.1:30000 --decode http://127.0.0.1:30001 "
            "--host 0.0.0.0 --port 8000",
        ),
    ],
    # The comment behind a backslash ends the command there, and its words become arguments.
    "best-practices-decode": [
        server(
            f"{R1} --tp 8 {SERVED} --page-size 64 {R1_FLAGS} "
            "--disaggregation-decode-enable-offload-kvcache <blank># Enable async KV cache "
            "offloading in decode node"
        )
    ],
    "complete-guide-services": [
        started("mooncake.http_metadata_server", ""),
        started("mooncake_master", "--eviction_high_watermark_ratio=0.95"),
        started("mooncake.mooncake_store_service", "--config=[config_path]"),
    ],
}


def shape(command: Command) -> Started:
    words = argv(command)
    if words[0] in ("python", "python3") and words[1] == "-m":
        words = words[2:]
    arguments = " ".join(
        "<json>" if word.startswith("{") else word.replace(" #", "<blank>#") for word in words[1:]
    )
    environment = variables(command)
    return words[0], arguments, environment


def launch(name: str) -> Reading:
    return read_source(str(LAUNCHES / f"{name}.sh"), {})


@each_row("name", EXPECTED)
def test_launch(name: str) -> None:
    assert [shape(command) for command in launch(name).commands] == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "programs"),
    [
        ("slurm-two-nodes.sbatch", ["sglang.launch_server"]),
        ("server-by-arguments.bash", ["sglang.launch_server"] * 2),
        ("sglang.service", ["sglang.launch_server"]),
        ("sglang.Dockerfile", ["sglang.launch_server"]),
        ("compose-store.yaml", ["mooncake_master", "sglang.launch_server"]),
        ("offline-engine.py", ["mooncake_master", "sglang.launch_server"]),
    ],
)
def test_launches_of_other_kinds_start_what_they_say(name: str, programs: list[str]) -> None:
    """Small equivalents of public ones: a job of Slurm, a unit, an image, a project, Python."""
    found = []
    for command in read_source(str(LAUNCHES / name), {}).commands:
        texts = argv(command)
        found += [text for text in texts if text in ("mooncake_master", "sglang.launch_server")]
    assert found == programs


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.sh", b"\x7fELF\0\0", "binary"), ("a.yaml", b"a: [", "not YAML"),
        ("a.json", b"{", "not JSON"), ("a.yaml", b"- x", "neither"), (None, b"", "does not exist"),
        ("", b"", "not a regular file"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_meant(
    tmp_path: Path, name: str | None, text: bytes, says: str
) -> None:
    path = tmp_path / (name or "")
    if name:
        path.write_bytes(text)
    with pytest.raises(SourceError, match=says):
        read_source(str(path if name is not None else tmp_path / "missing"), {})


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the published guides are not beside this checkout")
def test_the_launches_are_as_published() -> None:
    published = "\n".join(path.read_text() for path in SEEDS.glob("*.txt"))
    for path in LAUNCHES.glob("*.sh"):
        for line in path.read_text().splitlines()[1:]:
            assert line in published


FOLDERS = [
    'source "$(dirname "$0")/../lib.sh"',
    'source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"',
    'D=$(cd "$(dirname "$0")/.." && pwd); . "$D/lib.sh"',
    'cd "$(dirname "$0")"; . ../lib.sh',
    'cd "${0%/*}/.." || exit 1; . ./lib.sh',
    'D=$(dirname "$(readlink -f "$0")"); . $D/../lib.sh',
    "D=$(realpath $(dirname $0)/..); source ${D}/lib.sh",
    'pushd "$(dirname "$0")"; . ../lib.sh',
    'cd /tmp; cd -; . "$(dirname "$0")/../lib.sh"',
    '(cd /tmp; :); . "$(dirname "$0")/../lib.sh"',
]


@pytest.mark.parametrize("line", FOLDERS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_file_is_found_from_the_folder_of_the_script(
    line: str, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever name the script is given, from the folder above its own; bash sources it too."""
    (tmp_path / "in").mkdir()
    (tmp_path / "lib.sh").write_text("A=5\n")
    path = tmp_path / "in" / "run.sh"
    path.write_text(f"{line}\nx $A\n")
    monkeypatch.chdir(tmp_path)
    reading = read_source(str(path) if whole else "in/run.sh", {"PWD": str(tmp_path)})
    assert argvs(reading) == [["x", "5"]]
