"""What no reader knows is named, and nothing passes; what the launch writes itself is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.launches.shell_script import read_script
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.processes import LaunchOptions, ProcessKind, understand
from preflight.processes.unread import count_of, unread
from tests.builders.launched import written
from tests.tables import each_row

PLENTY = LaunchOptions(available_bytes=1 << 42, nic_nodes=())


def sized(
    tmp_path: Path,
    script: str,
    files: Mapping[str, str] | None = None,
    options: LaunchOptions = PLENTY,
) -> LaunchSizing:
    """A launch.sh, with ``files`` beside it, on a host below ``host``."""
    for name, text in (files or {}).items():
        (tmp_path / name).write_text(text)
    path = written(tmp_path, script)
    host = Root(str(tmp_path / "host"))
    launch = read_launch((str(path),), (), {}, host)
    return size_written(launch, options, host)


SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64 "


TRAINER = "python3 train.py --hf-checkpoint Qwen/Qwen3-4B --sglang-page-size 64 "


@pytest.mark.parametrize(
    ("words", "count", "said"),
    [
        ("--rollout-num-gpus 8 --rollout-num-gpus-per-engine 2", 4, "starts 4 of it"),
        ("--colocate --rollout-num-gpus-per-engine 2", 4, "starts 4 of it"),
        ("--colocate --actor-num-nodes=2 --rollout-num-gpus-per-engine 8", 2, "starts 2 of it"),
        ("--rollout-num-gpus 8 --rollout-num-gpus-per-engine=8", 1, ""),
        ("--rollout-num-gpus-per-engine 2", None, "it has no --rollout-num-gpus"),
        ("--rollout-num-gpus $GPUS --rollout-num-gpus-per-engine 2", None, "GPUS"),
    ],
)
def test_a_trainer_starts_an_engine_for_each_share_of_its_gpus(
    tmp_path: Path, words: str, count: int | None, said: str
) -> None:
    """What is counted is one engine: the others are named, and nothing passes over them."""
    sizing = sized(tmp_path, f"{TRAINER}{words}\n")
    (server,) = sizing.inputs.processes
    counted = count_of(server)
    assert (None if isinstance(counted, Unknown) else counted) == count
    told = [each.why for each in sizing.unread if each.what == "SGLang server"]
    assert [said in why for why in told] == [True] * bool(said)


# A connector of which nothing is known here.
NIXL = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (f"vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8 {NIXL}", ProcessKind.VLLM),
        (f"python3 -m vllm.entrypoints.openai.api_server --model m {NIXL}", ProcessKind.VLLM),
        ("lmcache_server 0.0.0.0 8100", ProcessKind.LMCACHE),
        ("python3 -m lmcache.v1.server 0.0.0.0 8100", ProcessKind.LMCACHE),
        (f"python3 -m dynamo.vllm --model m {NIXL}", ProcessKind.DYNAMO_VLLM),
        ("trtllm-serve m", ProcessKind.ENGINE),
        ("text-generation-launcher --model-id m", ProcessKind.ENGINE),
    ],
)
def test_an_engine_beside_a_master_is_named_and_nothing_fits(
    tmp_path: Path, words: str, kind: ProcessKind
) -> None:
    found = sized(tmp_path, f"mooncake_master &\n{words}\n")
    assert [process.kind for process in found.inputs.processes] == [ProcessKind.MASTER, kind]
    assert found.status == "unknown"
    assert " ".join(words.split()[:3]) in found.reason
    assert "launch.sh:2" in found.reason


def test_what_a_written_file_holds_is_unknown_where_a_variable_decides(tmp_path: Path) -> None:
    script = "echo \"{'a': $NOBODY}\" > a.yaml\nmooncake_master --config_path a.yaml\n"
    found = sized(tmp_path, script)
    assert found.status == "unknown"
    assert "depends on NOBODY" in found.reason
    edited = sized(tmp_path, "echo a: 1 > a.yaml\nsed -i s/1/2/ a.yaml\nmooncake_master "
                   "--config_path a.yaml\n")  # fmt: skip
    assert "what sed writes" in edited.reason


@each_row(
    ("line", "counts"),
    [
        ("ollama serve", False),
        ("ollama pull qwen3", True),
        ("llama-server -m x.gguf", False),
        ("memcached -m 900000", False),
        ("python3 -m sglang.bench_offline_throughput --model-path m", False),
        ("python3 -m sglang.bench_one_batch_server --base-url http://h:1", True),
        ("python3 -m sglang.bench_serving --port 1", True),
        ("vllm bench throughput --model m", False),
        ("vllm bench serve --model m", True),
        ("redis-server --maxmemory 900gb", False),
        ("redis-server & mooncake_client --metadata_server=redis://h:6379", True),
        ("etcd --name a &", True),
        # Programs of an engine or a store that no reader knows, and those that hold nothing.
        ("python3 -m sglang.new_server --model-path m", False),
        ("python3 /opt/vllm_worker.py", False),
        ("run_in_background python3 -m sglang.launch_server --model-path m", False),
        ("retry 3 vllm serve m", False),
        ("$SERVER --port 1", False),
        ("docker run example/store:1 --size 80", False),
        ("docker run example/engine:1 Qwen/Qwen3-8B --tp 8", False),
        ("pkill -f sglang.launch_server", True),
        ("python3 -m sglang.bench_serving --backend sglang", True),
        ("python3 -m dynamo.frontend --http-port 8000", True),
        ("curl http://localhost:30000/vllm", True),
        ("pip install vllm==0.11.0", True),
        ("command -v mooncake_master", True),
    ],
)
def test_engines_and_stores_with_memory_of_their_own_are_named(line: str, counts: bool) -> None:
    reading = read_script(f"mooncake_master &\n{line}\n", "s", {})
    assert (unread(reading, understand(reading.commands, Unknown)) == ()) is counts
