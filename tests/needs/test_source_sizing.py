"""A launch as it was written is sized to the page, at both ends of what is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base.output import json_text
from preflight.cli.sizing import run
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.launch_problems.rules.launch_rules import with_problems
from preflight.launches.shell_script import read_script
from preflight.launches.source import Reading
from preflight.needs.launch_sizing import LaunchSizing, size_launch
from preflight.needs.shown_needs import host_needs
from preflight.needs.sizing_json import launch_object
from preflight.needs.sizing_text import explain, launch_text
from preflight.processes.processes import LaunchOptions
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.builders.launch_text import MASTER, process
from tests.needs.test_sizing_command import SCHEMA
from tests.valid import valid

HUGE = {"MC_STORE_USE_HUGEPAGE": "1"}
RDMA = {"MOONCAKE_PROTOCOL": "rdma"}
SERVER = "python3 -m sglang.launch_server --tp 2 --page-size 64 --enable-hierarchical-cache"
QWEN = f"{SERVER} --model-path Qwen/Qwen3-14B"
STORE = "--hicache-storage-backend mooncake"


def size(
    root: Path,
    *lines: str | tuple[str, Mapping[str, str]],
    options: LaunchOptions | None = None,
    files: Mapping[str, str] | None = None,
) -> LaunchSizing:
    commands = []
    for number, line in enumerate(lines, start=1):
        text, environment = (line, {}) if isinstance(line, str) else line
        commands.append(process(text, environment, number))

    def read_file(name: str) -> str | Unknown:
        return (files or {}).get(name, Unknown(f"{name}: not here", absent=True))

    reading = Reading(tuple(commands))
    chosen = options or LaunchOptions(mooncake_version="0.3.13.post1")
    return size_launch(reading, "launch.sh", chosen, Root(str(root)), read_file)


def pages(sizing: LaunchSizing, page_size: int = 2 * MIB) -> int:
    assert sizing.shown is not None
    return sizing.shown.verdict.needs.get(Spot(page_size, None), 0)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return Host({2 * MIB: HostPool(total=60000)}, memory_bytes=512 * GIB).write(tmp_path)


# SGLang's own check --------------------------------------------------------------------------


# Nothing raises ------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *QWEN.split(),
        *STORE.split(),
        *"""--hicache-size 30 -1 0 x --hicache-ratio 2 --dp 8 --tp --enable-dp-attention --nnodes $N
        --hicache-storage-backend-extra-config {"master_server_address":"a:1"} {} [] { @x.yaml 64
        --page-size --disaggregation-mode decode prefill --kv-cache-dtype fp8_e4m3 mxfp8 1000000
        mooncake_client --global_segment_size=80GB mooncake_master --pp --served-model-name $D $P
        --mooncake-ib-device --disaggregation-ib-device --max-total-tokens --port $S NEXTN EAGLE3
        --speculative-algorithm STANDALONE DFLASH $A --speculative-draft-model-path Qwen/Qwen3-8B 8k
        --context-length --disaggregation-decode-enable-offload-kvcache --dcp-size direct
        --hicache-host-memory-fraction --max-running-requests --hicache-io-backend""".split(),
    ]
)
VARIABLES = st.dictionaries(
    st.sampled_from(
        """MOONCAKE_MASTER MOONCAKE_GLOBAL_SEGMENT_SIZE MOONCAKE_DEVICE MC_GID_INDX MC_MAX_MR_SIZE
        MC_STORE_USE_HUGEPAGE MC_MMAP_ARENA_POOL_SIZE MOONCAKE_PROTOCOL MOONCAKE_CHECK_SERVER
        SGLANG_HICACHE_MOONCAKE_CONFIG_PATH MOONCAKE_CLIENT MOONCAKE_STANDALONE_STORAGE
        MOONCAKE_ENABLE_SSD_OFFLOAD MOONCAKE_OFFLOAD_FILE_STORAGE_PATH SGLANG_HUGEPAGE_SIZE
        MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES""".split()
    ),
    st.text(max_size=12).filter(lambda text: "\x00" not in text)
    | st.sampled_from(["4gb", "0", "1", "a:1", '{"0": "mlx5_0"}', "store.json", "$X", "tcp"]),
    max_size=6,
)


@pytest.mark.slow
@given(st.lists(WORDS | st.text(max_size=8), max_size=14), VARIABLES, st.text(max_size=60))
def test_no_launch_makes_the_sizing_raise(
    words: list[str], environment: dict[str, str], config: str
) -> None:
    from preflight.base.usage_error import UsageError
    from preflight.launches.source import Command, Origin, Word

    origin = Origin("launch.sh", 1)

    def word(text: str) -> Word:
        return Word(text, origin, (text,) if text.startswith("$") else ())

    line = ["python3", "-m", "sglang.launch_server", *words]
    command = Command(
        tuple(word(text) for text in line),
        {name: word(text) for name, text in environment.items()},
        (),
        origin,
    )
    reading = Reading((command, command._replace(words=tuple(word(text) for text in words))))
    try:
        sizing = size_launch(
            reading, "launch.sh", LaunchOptions(), Root("/nowhere"), lambda _name: config
        )
    except UsageError:
        return
    assert sizing.exit_code in (0, 1, 2, 3)
    sizing = with_problems(sizing)
    answer = json.loads(json_text(launch_object(sizing, "exact")))
    valid(answer, SCHEMA)
    launch_text(sizing, "exact", lambda text, _colour: text)
    if sizing.shown is not None:
        needs = host_needs(sizing.shown, sizing.inputs.processes)
        explain(needs, sizing.shown.inputs.shown)


@pytest.mark.parametrize(
    ("before", "given", "why"),
    [
        ("pip install sglang==0.4.10\n", None, "SGLang 0.4.10 is older than 0.5.2"),
        ("docker run --gpus all lmsysorg/sglang:v0.4.6.post5-cu124 ", None, "0.4.6.post5 is older"),
        ("docker run --gpus all lmsysorg/sglang:v0.4.6.post5-cu124 ", "0.5.9", ""),
        ("pip install sglang==0.5.2\n", None, ""),
    ],
)
def test_a_release_older_than_the_known_ones_is_not_taken_for_the_newest(
    host: Path, before: str, given: str | None, why: str
) -> None:
    options = LaunchOptions(mooncake_version="0.3.13.post1", sglang_version=given)
    reading = read_script(f"{before}{QWEN} --hicache-size 5", "l.sh", {})
    sizing = size_launch(reading, "l.sh", options, Root(str(host)), Unknown)
    assert [one.why for one in sizing.unread if why in one.why] == [
        one.why for one in sizing.unread
    ]
    assert (sizing.status == "unknown") is bool(sizing.unread) is bool(why)


# utils/numa_utils.py: 0.5.9 does not bind by itself; from 0.5.10 on any constraint turns binding
# off (_is_numa_available); from 0.5.14 on it is off where no CPU of the node is left (#26983).
@pytest.mark.parametrize(
    ("version", "wrapper", "flags", "nodes"),
    [
        ("0.5.9", "", "", {None}),
        ("0.5.9", "numactl --cpunodebind=0 ", "", {None}),
        ("0.5.12.post1", "", "", {0, 1}),
        ("0.5.12.post1", "numactl --cpunodebind=0 ", "", {None}),
        ("0.5.13", "numactl -N 0 ", "", {None}),
        ("0.5.13", "numactl -N 0,1 ", "", {0, 1}),
        ("0.5.13", "numactl --cpunodebind=0 --membind=0 ", "", {0}),
        # Only the memory policy is replaced: no CPU is taken away.
        ("0.5.13", "numactl --membind=0 ", "", {0, 1}),
        ("0.5.14", "numactl --cpunodebind=0 ", "", {0, None}),
        ("0.5.23", "numactl --cpunodebind=0 ", "", {0, None}),
        ("0.5.23", "numactl --cpunodebind=0 --membind=0 ", "", {0}),
        ("0.5.23", "numactl --cpunodebind=0 ", "--numa-node 0 1", {0, None}),
        ("0.5.23", "numactl --membind=0 ", "", {0, 1}),
        ("0.5.23", "numactl --interleave=0 ", "", {0, 1}),
    ],
)
def test_sglang_binds_ranks_to_the_nodes_whose_cpus_numactl_leaves(
    tmp_path: Path, version: str, wrapper: str, flags: str, nodes: set[int | None]
) -> None:
    there = Host({2 * MIB: HostPool(total=60000)}, nodes=(0, 1), memory_bytes=512 * GIB)
    text = f"{wrapper}{QWEN} {flags} {STORE} --hicache-size 30"
    options = LaunchOptions(None, (0, 1), None, "0.3.13.post1", version)
    root = Root(str(there.write(tmp_path)))
    reading = read_script(text, "launch.sh", {**HUGE, **MASTER, **RDMA})
    sizing = size_launch(reading, "launch.sh", options, root, lambda name: Unknown(name))
    assert not isinstance(sizing.inputs.least, Unknown)
    members = sizing.inputs.least.launch.processes
    assert {one.node for one in members} == nodes


def sized(tmp_path: Path, *words: str, **options: int) -> LaunchSizing:
    Host(memory_bytes=64 * GIB).write(tmp_path)
    root = Root(str(tmp_path))
    launch = read_launch(words, (), {}, root, is_command=True)
    return size_written(launch, LaunchOptions(**options), root)  # type: ignore[arg-type]


def test_an_engine_alone_is_unknown_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "launch.sh"
    nixl = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    words = f"vllm serve Qwen/Qwen3-8B --kv-transfer-config '{nixl}'"
    script.write_text(f"mooncake_master &\n{words}\n")
    assert run([str(script)]) == 3
    assert "vllm serve Qwen/Qwen3-8B" in capsys.readouterr().out
    assert run(["--json", str(script)]) == 3
    assert "vllm serve" in json.loads(capsys.readouterr().out)["error"]


NODE = "sys/devices/system/node/node{}/meminfo"


@pytest.mark.parametrize(
    ("nodes", "size", "status"),
    [
        ("0", "40GB", "fails"),
        ("0", "30GB", "fits"),
        ("0,1", "60GB", "fits"),
        ("0,1", "70GB", "fails"),
        ("2", "30GB", "unknown"),
    ],
)
def test_memory_that_is_bound_to_a_node_has_to_be_there(
    tmp_path: Path, nodes: str, size: str, status: str
) -> None:
    """As check says: one judgement for both."""
    Host(memory_bytes=96 * GIB, nodes=(0, 1, 2)).write(tmp_path)
    for node in (0, 1):
        rows = {"MemTotal": 32 << 20, "MemFree": 32 << 20, "Active(file)": 0}
        rows |= {"Inactive(file)": 0, "SReclaimable": 0}
        text = "".join(f"Node {node} {name}: {kib} kB\n" for name, kib in rows.items())
        (tmp_path / NODE.format(node)).write_text(text)
    with (tmp_path / "proc/meminfo").open("a") as file:
        file.write("SwapFree: 0 kB\n")
    root = Root(str(tmp_path))
    words = ("numactl", f"--membind={nodes}", "mooncake_client", f"--global_segment_size={size}")
    launch = read_launch((*words, "--protocol=tcp"), (), {}, root, is_command=True)
    found = size_written(launch, LaunchOptions(), root)
    assert (found.status, "node" in found.reason) == (status, status != "fits")


def test_pages_of_several_nodes_have_a_row_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {2 * MIB: HostPool(total=3000, nodes=dict.fromkeys((0, 1, 2), (1000, 1000)))}
    Host(pools, nodes=(0, 1, 2)).write(tmp_path)
    words = "numactl --membind=0,2 mooncake_client --global_segment_size=1GB --protocol=tcp"
    launch = ("env", "MC_STORE_USE_HUGEPAGE=1", *words.split())
    assert run(["--json", "--root", str(tmp_path), "--", *launch]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["exact"]["hugetlb"]
    assert pool["nodes"] == []
    (row,) = pool["node_groups"]
    assert (row["nodes"], row["need_pages"], row["available_pages"]) == ([0, 2], 512, 2000)


FAMILIES = """
    Qwen/Qwen3-32B Qwen/Qwen3-14B deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-V3.2 zai-org/GLM-4.7
    zai-org/GLM-5.2-FP8 openai/gpt-oss-120b Qwen/Qwen3-Next-80B-A3B-Instruct
    XiaomiMiMo/MiMo-V2-Flash
""".split()
OF_PATH = "--speculative-draft-model-path Qwen/Qwen3-8B --speculative-algorithm"
DRAFTS = ["", "EAGLE", "NEXTN", "FROZEN_KV_MTP", "NGRAM"]
DRAFTS = [f"--speculative-algorithm {name}" if name else "" for name in DRAFTS]
DRAFTS += [f"{OF_PATH} {name}" for name in ("EAGLE", "EAGLE3", "STANDALONE", "DFLASH")]
RATIOS = ["", *(f"--hicache-ratio {ratio}" for ratio in ("0.5", "1.0", "2"))]
TINY = ["--hicache-ratio 0", "--hicache-ratio 1e-9"]
TOKENS = ["", "--max-total-tokens 0", "--max-total-tokens 63", "--mem-fraction-static 0.3"]
RELEASES = ["0.5.2", *(f"0.5.{minor}" for minor in range(4, 24))]


@given(
    st.sampled_from(FAMILIES),
    st.sampled_from(DRAFTS),
    st.sampled_from([*RATIOS, *RATIOS, *TINY, "--hicache-size 20"]),
    st.sampled_from(TOKENS),
    st.sampled_from(RELEASES),
    st.sampled_from([16, 80, 180]),
)
@example("Qwen/Qwen3-32B", f"{OF_PATH} EAGLE3", "", "", "0.5.22", 80)
@example("deepseek-ai/DeepSeek-V3", "--speculative-algorithm EAGLE", RATIOS[-1], "", "0.5.13", 180)
def test_a_draft_is_sized_with_each_ratio_in_each_release(
    model: str, draft: str, asked: str, tokens: str, release: str, gib: int
) -> None:
    """Where it may be that the GPU has no token left, the least is a bound like another."""
    line = f"{SERVER} --model-path {model} {draft} {asked} {tokens}"
    options = LaunchOptions(sglang_version=release, gpu_bytes=gib * GIB)
    sizing = size(Path("/nowhere"), line, options=options)
    assert sizing.exit_code in (0, 1, 2, 3)
    (memory,) = sizing.inputs.memory.values()
    # Of a page or two the ratio's last bit decides, which is one of each number of tokens.
    if asked not in TINY and not isinstance(memory.most_pools_bytes, Unknown):
        assert sum(memory.least_pools_bytes) <= sum(memory.most_pools_bytes)
