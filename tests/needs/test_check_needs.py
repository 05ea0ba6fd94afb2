"""What checks are told of a launch: processes, regions, services, ports and paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.framework.installed import Installed
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.pages import Region
from checks.framework.root import Root
from checks.framework.units import GIB, MIB, TIB
from checks.framework.unknown import Unknown
from checks.rdma.registration import pinned_bytes, registration_of
from preflight.launches.launch_files import read_source
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing, size_launch
from preflight.needs.shown_needs import host_needs
from preflight.processes.processes import LaunchOptions
from tests.builders.hosts import Host, HostPool
from tests.paths import ROOT
from tests.tables import each_row

LAUNCHES = ROOT / "tests/data/launches"
PAGE = 2 * MIB


@pytest.fixture
def root(tmp_path: Path) -> Root:
    host = Host({PAGE: HostPool(300000)}, nodes=(0,), memory_bytes=2048 * GIB)
    return Root(str(host.write(tmp_path / "host")))


NeedsOf = Callable[..., LaunchNeeds]
OPTIONS = LaunchOptions(mooncake_version="0.3.13.post1", sglang_version="0.5.23")


def sized(path: Path, root: Root, options: LaunchOptions = OPTIONS) -> LaunchSizing:
    reading, folder = read_source(str(path), {}), Root(str(path.parent))
    return size_launch(reading, path.name, options, root, lambda name: folder.text("/" + name))


@pytest.fixture
def needs_of(tmp_path: Path, root: Root) -> NeedsOf:
    """``needs_of(text, **options)``: the needs of a script on the host of ``root``."""

    def found(text: str, **options: Any) -> LaunchNeeds:
        return launch_needs(sized(_script(tmp_path, text), root, OPTIONS._replace(**options)))

    return found


def _script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "launch.sh"
    path.write_text(text)
    return path


def _by_program(needs: LaunchNeeds) -> dict[str, list[ProcessNeeds]]:
    found: dict[str, list[ProcessNeeds]] = {}
    for process in needs.processes:
        found.setdefault(process.program, []).append(process)
    return found


def test_the_ssd_deployment(root: Root) -> None:
    """The DGX benchmark with SSD offload: an 80 GiB client with a 20 GiB buffer, and a server."""
    path = LAUNCHES / "dgx-l1-l2-mooncake-ssd.sh"
    needs = launch_needs(sized(path, root))
    programs = _by_program(needs)
    assert {name: len(found) for name, found in programs.items()} == {
        "mooncake_master": 1,
        "mooncake_client": 1,
        "sglang": 1,
    }
    (client,) = programs["mooncake_client"]
    # No huge pages are asked for: 80 GiB and 20 GiB of regular memory, both registered.
    assert client.regions == (
        Region("global segment", 80 * GIB, 4096),
        Region("SSD offload buffer", 20 * GIB, 4096),
    )
    assert client.regular_bytes == 100 * GIB
    assert client.rdma is not None
    assert client.rdma.devices == ("ibp12s0", "ibp75s0")
    assert client.uses_uring is True
    # The server's L2 follows from $MODEL_PATH, which nothing sets; the client's numbers do not.
    (server,) = programs["sglang"]
    assert isinstance(server.regions, Unknown)
    assert "MODEL_PATH" in server.regions.reason
    assert isinstance(needs.usages, Unknown)
    assert [(s.kind, s.host, s.port, s.own) for s in needs.services] == [
        ("master", "localhost", 50051, True),
        ("master", "127.0.0.1", 50051, True),
    ]
    ports = {port.what: port.port for port in needs.ports if port.owner.startswith("mooncake")}
    assert ports == {"RPC port": 50051, "metrics port": 9004, "service port": 50052}
    offload = next(item for item in needs.storage if item.kind == "offload")
    assert (offload.path, offload.need_bytes, offload.direct_io, offload.created) == (
        "/mnt/data/file_storage",
        2 * TIB,  # Mooncake's own limit
        True,  # io_uring
        False,
    )


SERVER = "python3 -m sglang.launch_server --page-size 64 --enable-hierarchical-cache"
STORE = f"MOONCAKE_MASTER=10.0.0.9:50051 {SERVER} --hicache-storage-backend mooncake"


def test_k_and_v_are_registered_as_two_halves(needs_of: NeedsOf) -> None:
    """Qwen3-14B tp 2, 30 GB: 30 005 002 240 bytes, registered as 2 x 15 002 501 120 since 0.5.21.
    One rank's segment is 4 GiB / 2."""
    text = f"{STORE} --model-path Qwen/Qwen3-14B --tp 2 --hicache-size 30\n"
    needs = needs_of(text)
    assert len(needs.processes) == 2
    for rank, process in enumerate(needs.processes):
        assert process.gpu == rank
        assert process.regions == (
            Region("K half of the L2 host pool", 15_002_501_120, 4096),
            Region("V half of the L2 host pool", 15_002_501_120, 4096),
            Region("local buffer", 16 * MIB, 4096, 4032),  # aligned to 64 bytes, wherever it is
            Region("global segment", 2 * GIB, 4096),
        )
    older = needs_of(text, sglang_version="0.5.20")
    assert not isinstance(older.processes[0].regions, Unknown)
    assert older.processes[0].regions[0] == Region("L2 host pool", 30_005_002_240, 4096)


def test_what_is_registered_of_pools_on_huge_pages(needs_of: NeedsOf) -> None:
    """DeepSeek-R1, 1 GB: Mooncake 0.3.13 registers the bytes, 0.3.14 all 2 MiB pages of the pool.
    Seen in 0.3.14's log: segment_size=65011712, logical_size=64000000."""
    text = (
        f"MC_STORE_USE_HUGEPAGE=1 {STORE} --model-path deepseek-ai/DeepSeek-R1 --tp 8 "
        "--hicache-size 1\n"
    )
    sizes = {}
    for version in ("0.3.13.post1", "0.3.14"):
        needs = needs_of(text, mooncake_version=version)
        regions = needs.processes[0].regions
        assert not isinstance(regions, Unknown)
        assert regions[0].page_bytes == PAGE
        sizes[version] = regions[0].bytes
    assert sizes["0.3.13.post1"] % PAGE
    assert sizes["0.3.14"] == sizes["0.3.13.post1"] + -sizes["0.3.13.post1"] % PAGE


def test_a_rank_without_a_segment_hands_whole_huge_pages_over(needs_of: NeedsOf) -> None:
    """Measured: of 20 000 000 and 50 000 000 bytes the client pins 20 and 48 MiB with each NIC."""
    text = (
        "export MOONCAKE_STANDALONE_STORAGE=1 MOONCAKE_CLIENT=127.0.0.1:50052\n"
        "export MC_STORE_USE_HUGEPAGE=1\n"
        "mooncake_client --global_segment_size=1GB --protocol=rdma &\n"
        f"{STORE} --model-path deepseek-ai/DeepSeek-R1 --tp 8 --hicache-size 1\n"
    )

    def regions(changed: str) -> tuple[Region, ...]:
        needs = _by_program(needs_of(changed))
        # The ranks have neither NICs nor locked memory of their own.
        assert {(rank.regions, rank.rdma) for rank in needs["sglang"]} == {((), None)}
        found = needs["mooncake_client"][0].regions
        assert not isinstance(found, Unknown)
        return found

    huge = regions(text)
    assert [region.what for region in huge] == ["global segment"] + 8 * [
        "L2 host pool",
        "local buffer",
    ]
    assert [region.bytes % PAGE for region in huge[1:3]] == [0, 0]
    regular = regions(text.replace("export MC_STORE_USE_HUGEPAGE=1", ""))
    assert [region.offset_bytes for region in regular[1:3]] == [0, 0]  # shared memory, not malloc's
    assert 0 < huge[1].bytes - regular[1].bytes < PAGE
    # Over TCP nothing is pinned; of two clients the one at the ranks' address pins it.
    assert regions(text.replace("=rdma", "=tcp")) == ()
    other = "mooncake_client --port=50053 --global_segment_size=1GB --protocol=rdma &\n"
    assert len(regions(other + text)) == 1
    assert len(regions(other + text.replace("1:50052", "1:50053"))) == 17


@pytest.mark.parametrize("protocol", ["rdma", "tcp"])
@pytest.mark.parametrize(
    "started", ["", "mooncake_client --global_segment_size=1GB --protocol={} &"]
)
def test_sizing_and_check_say_alike_who_registers_a_ranks_memory(
    started: str, protocol: str, tmp_path: Path, root: Root
) -> None:
    """Sizing named the rank, and check its client: for a launch with two answers."""
    text = (
        "export MOONCAKE_STANDALONE_STORAGE=1 MOONCAKE_CLIENT=127.0.0.1:50052\n"
        f"export MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL={protocol}\n{started.format(protocol)}\n"
        f"{STORE} --model-path deepseek-ai/DeepSeek-R1 --tp 2 --hicache-size 1\n"
        f"{STORE} --model-path Qwen/Qwen3-8B --hicache-size 1 --port 30001 "
        '--hicache-storage-backend-extra-config \'{"standalone_storage": false, '
        '"master_server_address": "a:1"}\'\n'
    )
    sizing = sized(_script(tmp_path, text), root)
    assert sizing.shown is not None
    summed = {
        need.owner: need.value
        for need in host_needs(sizing.shown, sizing.inputs.processes)["registered"]
    }
    checked: dict[str, int] = {}
    for process in launch_needs(sizing).processes:
        assert not isinstance(process.regions, Unknown)
        pages = sum(
            pinned_bytes(registration_of(one, 0, None), 4096, one.offset_bytes)
            for one in process.regions
        )
        checked |= {str(process.name): pages} if pages else {}
    assert summed == checked
    assert len(summed) == (protocol == "rdma") * (2 if started else 1)


def test_a_client_registers_what_is_not_known_of_its_ranks(needs_of: NeedsOf) -> None:
    text = (
        "export MOONCAKE_STANDALONE_STORAGE=1 MOONCAKE_CLIENT=127.0.0.1:50052\n"
        "mooncake_client --global_segment_size=1GB --protocol=rdma &\n"
        f"{STORE} --model-path team/unknown --hicache-ratio 2\n"
    )
    needs = _by_program(needs_of(text))
    assert isinstance(needs["mooncake_client"][0].regions, Unknown)
    assert needs["sglang"][0].regions == ()


@pytest.mark.parametrize(
    ("written", "kind", "host", "port", "path"),
    [
        ("http://meta:8080/metadata", "metadata-http", "meta", 8080, "/metadata"),
        ("http://meta/metadata", "metadata-http", "meta", 80, "/metadata"),
        ("meta:2379", "metadata-etcd", "meta", 2379, ""),
        ("etcd://meta:2379", "metadata-etcd", "meta", 2379, ""),
        ("redis://meta:6379", "metadata-redis", "meta", 6379, ""),
        ("http://[::1]:80/a/b", "metadata-http", "::1", 80, "/a/b"),
        ("::1", "metadata-etcd", "::1", None, ""),
        ("meta:port", "metadata-etcd", "meta:port", None, ""),
    ],
)
def test_metadata_strings(
    needs_of: NeedsOf, written: str, kind: str, host: str, port: int | None, path: str
) -> None:
    text = (
        f"MOONCAKE_TE_META_DATA_SERVER={written} {STORE} --model-path Qwen/Qwen3-14B "
        "--hicache-size 1\n"
    )
    needs = needs_of(text)
    found = next(service for service in needs.services if service.kind == kind)
    assert (found.host, found.port, found.path) == (host, port, path)


def test_configurations_that_are_opened_as_files(needs_of: NeedsOf) -> None:
    extra = "--hicache-storage-backend-extra-config @/etc/extra.yaml"
    text = (
        "mooncake_master --config_path=/etc/master.yaml &\n"
        f"{STORE} --model-path Qwen/Qwen3-14B --hicache-size 1 {extra}\n"
    )
    needs = needs_of(text)
    paths = {item.path for item in needs.storage if item.kind == "config"}
    assert paths == {"/etc/master.yaml", "/etc/extra.yaml"}


def test_a_rank_offloads_below_a_folder_of_its_own_since_0_5_21(needs_of: NeedsOf) -> None:
    text = (
        "export MOONCAKE_ENABLE_SSD_OFFLOAD=1 MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/ssd\n"
        "export MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=1000\n"
        f"{STORE} --model-path Qwen/Qwen3-14B --tp 2 --hicache-size 1\n"
    )
    for version, shared in (("0.5.23", False), ("0.5.20", True)):
        needs = needs_of(text, sglang_version=version)
        item = next(item for item in needs.storage if item.kind == "offload")
        assert (item.path, item.need_bytes, item.users, item.shared, item.created) == (
            "/ssd",
            2000,
            2,
            shared,
            not shared,
        )


@pytest.mark.parametrize(
    ("words", "least_bytes"),
    [
        ("--tp 2", 4096),
        ("--tp 1", 0),
        ("--tp 16 --nnodes 2 --node-rank 0 --dist-init-addr a:1", 4096),
        ("--tp 16 --nnodes 2 --node-rank 1 --dist-init-addr a:1", 0),  # the writer is elsewhere
        ("--tp 2 --nnodes 2 --node-rank 0 --dist-init-addr a:1", 0),  # no reader here
        ("--pp 2", 0),
    ],
)
def test_a_tensor_parallel_server_writes_a_page_of_shared_memory(
    needs_of: NeedsOf, words: str, least_bytes: int
) -> None:
    """Its first rank alone, and not where the message queue is switched off."""
    server = f"python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B {words}\n"
    needs = needs_of(server)
    assert sum(one.shm_bytes for one in needs.processes) == least_bytes
    assert needs.processes[0].shm_bytes == least_bytes
    for value in ("0", "false", "False", ""):
        off = f"SGLANG_USE_MESSAGE_QUEUE_BROADCASTER={value} {server}"
        without = needs_of(off)
        assert sum(one.shm_bytes for one in without.processes) == 0


@pytest.mark.parametrize(
    ("settings", "words", "known"),
    [
        ("MOONCAKE_PROTOCOL=rdma", "", True),
        ("MOONCAKE_PROTOCOL=efa", "", False),
        ("MOONCAKE_PROTOCOL=ascend", "", False),
        ("MOONCAKE_PROTOCOL=tcp", "", True),
        # SGLang's own engine on an NPU, which moves KV.
        ("MOONCAKE_PROTOCOL=tcp", "--device npu --disaggregation-mode prefill", False),
    ],
)
def test_what_a_transport_without_verbs_pins_is_not_known(
    settings: str, words: str, known: bool, needs_of: NeedsOf
) -> None:
    """Its driver says that, and the NICs of the host are not its devices."""
    line = f"{settings} {STORE} --model-path Qwen/Qwen3-8B --tp 1 --hicache-size 1 {words}\n"
    rank = needs_of(line).processes[0]
    assert isinstance(rank.regions, Unknown) is not known
    assert (rank.rdma is not None) == (settings[-4:] == "rdma")
    assert isinstance(rank.regular_bytes, int)


@pytest.mark.parametrize("name", ["ASCEND_RT_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
def test_a_vllm_on_other_devices_shares_no_gpu(name: str, needs_of: NeedsOf) -> None:
    line = "vllm serve m --tensor-parallel-size 2\n"
    shared, other = (
        [one.gpu_share for one in needs_of(text).processes] for text in (line, f"{name}=0 {line}")
    )
    assert None not in shared
    assert set(other) == {None}


PREFILL = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill "
    "--disaggregation-transfer-backend mooncake --disaggregation-ib-device mlx5_0\n"
)
TRANSPORTS = {"ascend": "ascend", "ub": "ub", "efa": "efa", "tcp": "", "rdma": ""}
CLIENT = "mooncake_client --global_segment_size=1gb --protocol="
SERVICE = "MOONCAKE_MASTER=10.0.0.1:50051 python -m mooncake.mooncake_store_service"
ASCEND = f"{STORE} --model-path Qwen/Qwen3-8B --hicache-size 1"


@each_row(
    ("line", "release", "transport", "rdma"),
    [
        *((f"{CLIENT}{name}", "0.5.23", of, name == "rdma") for name, of in TRANSPORTS.items()),
        *(
            (f"MOONCAKE_PROTOCOL={name} {SERVICE}", "0.5.23", of, name == "rdma")
            for name, of in TRANSPORTS.items()
        ),
        # The mooncake_client that has the segment moves it, and not the rank.
        (f"MOONCAKE_PROTOCOL=ascend {ASCEND}", "0.5.23", "ascend", False),
        (f"MOONCAKE_PROTOCOL=ascend MOONCAKE_STANDALONE_STORAGE=1 {ASCEND}", "0.5.23", "", False),
        # SGLang's engine goes by MOONCAKE_PROTOCOL from 0.5.13 on; before, by RDMA all the same.
        (f"MOONCAKE_PROTOCOL=efa {PREFILL}", "0.5.12", "", True),
        (f"MOONCAKE_PROTOCOL=efa {PREFILL}", "0.5.13", "efa", False),
    ],
)
def test_a_transport_without_verbs_is_named_and_takes_no_rdma_devices(
    line: str, release: str, transport: str, rdma: bool, needs_of: NeedsOf
) -> None:
    process = needs_of(f"{line}\n", sglang_version=release).processes[0]
    assert (process.transport, process.rdma is not None) == (transport, rdma)


@pytest.mark.parametrize("protocol", ["", "MOONCAKE_PROTOCOL=efa ", "MOONCAKE_PROTOCOL=$P "])
def test_an_engine_that_is_forced_to_tcp_uses_none_of_the_devices_that_it_is_given(
    protocol: str, needs_of: NeedsOf
) -> None:
    """SGLang looks them up all the same, and ends where one is missing."""
    rank = needs_of(f"MC_FORCE_TCP=1 {protocol}{PREFILL}").processes[0]
    assert (rank.rdma, rank.transport) == (None, "")
    assert rank.looked_up is not None
    assert rank.looked_up.devices == ("mlx5_0",)


@pytest.mark.parametrize("line", [f"MOONCAKE_PROTOCOL=efa {PREFILL}", PREFILL])
def test_what_an_engine_of_a_release_that_nobody_names_goes_by_is_unknown_for_efa_alone(
    line: str, tmp_path: Path, root: Root
) -> None:
    options = LaunchOptions(installed=Installed((), None))
    rank = launch_needs(sized(_script(tmp_path, line), root, options)).processes[0]
    assert rank.transport == ""
    assert rank.rdma is not None
    if "efa" in line:
        assert isinstance(rank.rdma.devices, Unknown)
        assert rank.rdma.devices.advice == "give --sglang-version"
    else:
        assert rank.rdma.devices == ("mlx5_0",)


@pytest.mark.parametrize("forced", ["", "MC_FORCE_TCP=1 "])
def test_vllms_engine_is_forced_to_tcp_as_sglangs_is(forced: str, needs_of: NeedsOf) -> None:
    config = '{"kv_connector": "MooncakeConnector", "kv_role": "kv_producer", '
    config += '"kv_connector_extra_config": {"device_name": "mlx5_0"}}'
    line = f"{forced}vllm serve Qwen/Qwen3-8B --kv-transfer-config '{config}'\n"
    worker = needs_of(line).processes[0]
    assert (worker.rdma is None) is bool(forced)
    assert worker.rdma is None or worker.rdma.by_engine


GATED = (
    "python3 -m sglang.launch_server --model-path $MODEL --tp 2 --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 20 --hicache-mem-layout page_first"
)
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@each_row(("version", "limit"), [("0.5.21", 2 * 20_002_111_488 + 10 * GIB), ("0.5.20", 0)])
def test_what_a_cgroup_has_to_leave_for_sglangs_gate(
    needs_of: NeedsOf, version: str, limit: int
) -> None:
    """Since 0.5.21, of servers alone; one mapping is on no node of its own."""
    text = f"{GATED} &\nmooncake_client --global_segment_size=1GB --master_server_address=a:1"
    needs = needs_of(text, sglang_version=version, model_config=json.dumps(QWEN3_8B))
    limits = [(process.program, process.limit_bytes) for process in needs.processes]
    assert limits == [*[("sglang", limit)] * 2, ("mooncake_client", 0)]
    assert {process.segment_nodes for process in needs.processes} == {()}


@each_row(
    ("model", "config", "asked"),
    [
        ("$MODEL", QWEN3_8B, False),  # nothing of it has to be seen
        ("$MODEL", None, True),
        ("/models/x", QWEN3_8B, True),
    ],
)
def test_a_model_that_cannot_be_seen_is_not_looked_for_where_it_is_described(
    needs_of: NeedsOf, model: str, config: dict[str, Any] | None, asked: bool
) -> None:
    told = {} if config is None else {"model_config": json.dumps(config)}
    needs = needs_of(GATED.replace("$MODEL", model), **told)
    assert [file.kind for file in needs.storage] == ["model"] * asked
