"""What no reader knows is named, and nothing passes; what the launch writes itself is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.framework.finding import Status
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.command_inputs.reading.understood import reading_of
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.launches.shell_script import read_script
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.ports import ports
from preflight.processes.processes import LaunchOptions, ProcessKind, understand
from preflight.processes.unread import count_of, unread
from preflight.verdict.launch_checks import NOT_READ, launch_findings
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


@pytest.mark.parametrize(
    ("words", "given", "named"),
    [
        ("--host $HOST", None, ["HOST"]),  # no value behind it: the parser ends
        ("--context-length $NAME --dtype $LEVEL", None, ["NAME", "LEVEL"]),
        ("--served-model-name $NAME --log-level $LEVEL", None, []),  # decide nothing
        ('"$@"', None, ["$@"]),
        ('"$@"', (), []),
        ("--port $1", ("30001",), []),
        ("--port $1", None, ["$1"]),
    ],
)
def test_a_word_that_is_not_known_passes_nothing(
    tmp_path: Path, words: str, given: tuple[str, ...] | None, named: list[str]
) -> None:
    """What read names as not read, check judges as unknown: one record for both."""
    path = written(
        tmp_path, f"python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B {words}\n"
    )
    host = Root(str(tmp_path / "host"))
    launch = (str(path),) if given is None else ("bash", str(path), *given)
    sizing = size_written(read_launch(launch, (), {}, host), LaunchOptions(), host)
    said = [each.what for each in reading_of(sizing, "launch.sh").unread]
    judged = [f for f in launch_findings(sizing) if f.check == NOT_READ]
    assert said == named
    assert [str(f.subject).partition(" (")[0] for f in judged] == named
    assert all(f.status is Status.UNKNOWN and f.advice for f in judged)


SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64 "
L2 = "--enable-hierarchical-cache --hicache-size 20 --hicache-storage-backend"


@each_row(
    ("words", "named"),
    [
        *((f"{L2} {name}", [name]) for name in ("hf3fs", "nixl", "aibrix", "eic", "shm")),
        (f"{L2} file", []),
        ("--hicache-storage-backend nixl", []),  # of no L2
    ],
)
def test_a_storage_backend_with_memory_of_its_own_passes_nothing(
    tmp_path: Path, words: str, named: list[str]
) -> None:
    """SGLang's own sources: hf3fs maps shared memory, nixl and eic buffers, aibrix a cache."""
    found = [each.why for each in sized(tmp_path, f"{SERVER}{words}\n").unread]
    what = "what --hicache-storage-backend {} takes beside the L2 pool"
    assert found == [what.format(name) for name in named]


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


def test_servers_that_come_with_their_router_are_servers(tmp_path: Path) -> None:
    found = sized(
        tmp_path,
        "python3 -m sglang_router.launch_server --model-path Qwen/Qwen3-8B --dp-size 2 "
        "--router-policy cache_aware --router-balance-abs-threshold 1 --hicache-size 20 "
        "--enable-hierarchical-cache --port 8000\n",
    )
    (process,) = found.inputs.processes
    assert process.server is not None
    assert process.server.arguments.error is None
    assert (process.server.value("dp_size"), process.server.value("port")) == (2, 8000)
    assert not process.server.arguments.unrecognized


def test_an_image_of_vllm_runs_vllm(tmp_path: Path) -> None:
    for image in ("vllm/vllm-openai:v0.11.0", "lmcache/vllm-openai:2025-05-27-v1"):
        found = sized(tmp_path, f"docker run --gpus all {image} --model m --port 8100\n")
        assert [process.kind for process in found.inputs.processes] == [ProcessKind.VLLM]


def test_the_masters_file_stands_below_its_flags(tmp_path: Path) -> None:
    found = sized(
        tmp_path,
        "mooncake_master --config_path=m.yaml --metrics_port 9013\n",
        {"m.yaml": "rpc_port: 50061\nmetrics_port: 9003\nno_flag_of_it: 1\n"},
    )
    (master,) = found.inputs.processes
    assert [port.port for port in ports(master)] == [50061, 9013]
    assert str(master.arguments[0].origin) == "m.yaml:1"
    assert not found.unread


def test_a_masters_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = sized(tmp_path, "mooncake_master --config_path=/etc/m.yaml\n")
    assert found.status == "unknown"
    assert "--config_path /etc/m.yaml" in found.reason


CONFIG = '{"master_server_address": "10.0.0.1:50051", "global_segment_size": "7gb"}'


@pytest.mark.parametrize(
    "writes",
    [
        f"cat > c.json <<EOF\n{CONFIG}\nEOF\n",
        f"cat <<'EOF' >c.json\n{CONFIG}\nEOF\n",
        f"tee c.json <<EOF >/dev/null\n{CONFIG}\nEOF\n",
        f"echo '{CONFIG}' > ${{CONFIG}}\n",
    ],
)
def test_a_file_that_the_launch_writes_is_what_the_program_reads(
    tmp_path: Path, writes: str
) -> None:
    server = f"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH=./$CONFIG {SERVER}{L2} mooncake\n"
    found = sized(tmp_path, f"CONFIG=c.json\n{writes}{server}").inputs.processes[-1].server
    assert found is not None
    assert found.store is not None
    assert found.store.value("global_segment_size") == "7gb"


def test_what_a_written_file_holds_is_unknown_where_a_variable_decides(tmp_path: Path) -> None:
    script = "echo \"{'a': $NOBODY}\" > a.yaml\nmooncake_master --config_path a.yaml\n"
    found = sized(tmp_path, script)
    assert found.status == "unknown"
    assert "depends on NOBODY" in found.reason
    edited = sized(tmp_path, "echo a: 1 > a.yaml\nsed -i s/1/2/ a.yaml\nmooncake_master "
                   "--config_path a.yaml\n")  # fmt: skip
    assert "what sed writes" in edited.reason


def test_a_file_that_the_launch_writes_need_not_be_there_yet(tmp_path: Path) -> None:
    text = (
        "export SGLANG_HICACHE_MOONCAKE_CONFIG_PATH=/nowhere/c.json\n"
        f"echo '{{}}' > $SGLANG_HICACHE_MOONCAKE_CONFIG_PATH\n{SERVER}{L2} mooncake\n"
    )
    assert [file.kind for file in launch_needs(sized(tmp_path, text)).storage] == ["model"]


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


def test_how_many_is_not_known_is_not_read(tmp_path: Path) -> None:
    """One was counted, and passed."""
    words = "mooncake_client --global_segment_size=1GB --protocol=tcp"
    found = sized(tmp_path, f"mpirun --hostfile hosts {words}\n")
    assert found.status == "unknown"
    assert any("how many it starts" in each.why for each in found.unread)


def test_the_sentence_does_not_count_what_nobody_counted(tmp_path: Path) -> None:
    client = "mooncake_client --global_segment_size=1GB --protocol=tcp"
    loop = f"for host in $HOSTS; do {client} & done\n"
    assert reading_of(sized(tmp_path, loop), "a").sentence.startswith("? mooncake_clients")
    both = reading_of(sized(tmp_path, f"{client} &\n{loop}"), "a").sentence
    assert both.startswith("1 or more mooncake_clients")
