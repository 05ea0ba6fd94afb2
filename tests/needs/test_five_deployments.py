"""Five deployments of the guides, each on its host: that the commands agree, and fit the place.

An H800 server with huge pages, the eRDMA cluster, the DGX with SSD offload, compose, Kubernetes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from preflight.base import exit_codes
from preflight.base.command_frame import run_command
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from tests.builders.synthetic import GIB, MIB, PATIENCE_SECONDS, SyntheticHost, build_host, gpu_host
from tests.host_tuning.test_plan_formats import needs_tool
from tests.host_tuning.test_plan_formats import run as run_program
from tests.rows import lines as lines_of
from tests.rows import subject, told

HUGE = """\
export MC_STORE_USE_HUGEPAGE=1 MC_MMAP_ARENA_POOL_SIZE=8gb
export MOONCAKE_GLOBAL_SEGMENT_SIZE=256gb MOONCAKE_PROTOCOL=rdma MOONCAKE_MASTER=127.0.0.1:50051
python3 -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-Instruct-2507 --tp 8 \\
    --page-size 64 --enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake
"""
DGX = """\
mooncake_client --host=127.0.0.1 --global_segment_size=80GB --port=50052 --protocol=rdma \\
    --master_server_address=localhost:50051 --metadata_server=P2PHANDSHAKE
MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_PROTOCOL=rdma \\
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 1 --page-size 64 \\
    --enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake
"""
SERVER = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4 --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 64 --hicache-storage-backend mooncake"
)
COMPOSE = """\
services:
  master:
    image: mooncake
    command: mooncake_master
  server:
    image: sglang
    network_mode: host
    {}
    environment:
      MC_STORE_USE_HUGEPAGE: "1"
      MOONCAKE_GLOBAL_SEGMENT_SIZE: 8gb
      MOONCAKE_MASTER: 127.0.0.1:50051
    devices: [/dev/infiniband]
    command: {}
"""
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "prefill"},
    "spec": {
        "selector": {"matchLabels": {"app": "a"}},
        "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": {
                "containers": [
                    {
                        "name": "engine",
                        "image": "sglang",
                        "command": SERVER.split(),
                        "env": [
                            {"name": "MOONCAKE_MASTER", "value": "10.0.0.9:50051"},
                            {"name": "MC_STORE_USE_HUGEPAGE", "value": "1"},
                        ],
                        "resources": {"limits": {"memory": "600Gi", "hugepages-2Mi": "64Gi"}},
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    }
                ],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
            },
        },
    },
}

Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """``ask(host, words, text, name)``: what a command prints of that launch on that host."""

    def asked(on: SyntheticHost, words: str, text: str, name: str = "run.sh") -> Any:
        root, launch = tmp_path / f"host{len(list(tmp_path.iterdir()))}", tmp_path / name
        launch.write_text(text)
        command, *options = words.split()
        where = ["--root", str(build_host(root, on)), *options]
        if command == "sizing":
            run_sizing([*where, str(launch)])
        else:
            run([command, "--timeout", str(PATIENCE_SECONDS), *where, str(launch)])
        printed = capsys.readouterr().out
        return json.loads(printed) if printed.startswith("{") else printed

    return asked


def of_check(found: Any, check: str) -> list[Any]:
    return [one for one in found["findings"] if one["check"] == check]


@pytest.mark.slow
def test_a_split_segment_on_regular_pages_counts_on_the_nodes_that_it_is_bound_to(ask: Ask) -> None:
    """40 GiB of the client's 80 on each node, whatever node it runs on; the rank's L2 on its own:
    30 GB are 3179 pages of 64 slots of 147456 bytes and one more, and 16 MiB of local buffer."""
    found = ask(
        replace(gpu_host(), node_bytes=128 * GIB), "check --json --only numa.node-memory", DGX
    )
    first, second = of_check(found, "numa.node-memory")
    assert told(second, "need") == "40.00 GiB"
    pool_bytes = (30 * 10**9 // 147456 // 64 + 1) * 64 * 147456
    pages_bytes = -(-pool_bytes // 4096) * 4096
    assert told(first, "need") == f"{(40 * GIB + pages_bytes + 16 * MIB) / GIB:.2f} GiB"
    assert first["status"] == "pass"
    tight = ask(
        replace(gpu_host(), node_bytes=66 * GIB), "check --json --only numa.node-memory", DGX
    )
    first, second = of_check(tight, "numa.node-memory")
    assert (first["status"], second["status"]) == ("fail", "pass")
    assert "40.00 GiB of segments" in first["formula"]


def test_the_formula_of_a_node_adds_up_to_what_is_needed(ask: Ask) -> None:
    """0.3.13 splits the segments of bound ranks, and each must see its other half free as well."""
    found = ask(gpu_host(), "check --json --only hugetlb.node-shortage", HUGE)
    shortages = of_check(found, "hugetlb.node-shortage")
    assert len(shortages) == 2
    for one in shortages:
        terms, _, more = one["formula"].partition(", and ")
        total = sum(
            int(count or 1) * int(pages)
            for count, pages in re.findall(r"(?:(\d+) x )?(\d+)(?= \+| pages)", terms)
        )
        assert told(one, "need").startswith(f"{total + int(more.split()[0])} pages")
    said = re.sub(r"\n {6,}", " ", ask(gpu_host(), "sizing --explain", HUGE))
    (line,) = [row for row in said.splitlines() if "2 MiB, node 0, host" in row]
    need, _, sum_of = line.partition(": ")[2].partition(": ")[2].partition(" = ")
    products = re.findall(r"(\d+) x \(([^)]*)\)", sum_of)
    numbers = sum(int(n) * sum(map(int, re.findall(r"\b(\d+) [a-zL]", t))) for n, t in products)
    extra = re.search(r"\) \+ (\d+) free", sum_of)
    assert extra is not None
    assert int(need) == numbers + int(extra[1])


@pytest.mark.slow
def test_a_launch_is_sized_for_the_release_that_it_would_load(ask: Ask) -> None:
    """The interpreter of the launch has 0.3.13.post1, this program's has none: every command takes
    that one. An image is not looked into."""
    sized = ask(gpu_host(), "sizing --json", HUGE)["inputs"]["mooncake_version"]
    assert sized["value"] == "0.3.13.post1"
    assert sized["origin"].startswith("mooncake-transfer-engine, installed for /usr/bin/python3")
    only = "check --json --only software.version-skew --only l2-*"
    found = ask(gpu_host(), only, HUGE)
    assert {one["status"] for one in of_check(found, "software.version-skew")} == {"pass"}
    assert of_check(found, "l2-halves-may-overlap") == []
    inside = ask(gpu_host(), only, COMPOSE.format("", SERVER), "compose.yaml")
    assert len(of_check(inside, "l2-halves-may-overlap")) == 1


def test_shared_memory_is_that_of_the_ranks_and_not_of_a_master_beside_them(ask: Ask) -> None:
    file = COMPOSE.format("ipc: host", SERVER)
    (one,) = of_check(
        ask(gpu_host(), "check --json --only shm.space", file, "compose.yaml"), "shm.space"
    )
    assert (one["status"], subject(one).rpartition(":")[2]) == ("pass", "14")
    planned = yaml.safe_load(ask(gpu_host(), "plan --format compose", file, "compose.yaml"))
    assert planned["services"]["server"]["ipc"] == "host"
    assert "shm_size" not in planned["services"]["server"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "line"),
    [
        ("memlock.runtime-limit", "# in the service: ulimits: {memlock: -1}"),
        ("numa.policy-refused", "# in the service: cap_add: [SYS_NICE]"),
        ("shm.space", "# in the service, where it has no ipc: host: shm_size: '1073741824'"),
    ],
)
def test_what_a_service_lacks_is_mended_in_the_compose_file(
    ask: Ask, check: str, line: str
) -> None:
    """The check runs on the host, whose own limits and /dev/shm change nothing for the service."""
    file = COMPOSE.format("", SERVER)
    found = ask(gpu_host(), f"check --json --only {check}", file, "compose.yaml")
    lines = [line for one in found["findings"] for line in lines_of(one)]
    assert lines == [line]


def test_a_patch_of_a_deployment_stands_where_its_pod_does_and_lowers_nothing(ask: Ask) -> None:
    patch = yaml.safe_load(ask(gpu_host(), "plan --format k8s", json.dumps(DEPLOYMENT), "pod.yaml"))
    pod = patch["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "engine"
    assert container["resources"]["limits"]["memory"] == "600Gi"
    assert "volumes" not in pod, "its own /dev/shm has 64 GiB"


@pytest.mark.slow
@needs_tool("kubectl")
def test_kubectl_makes_of_the_patch_what_the_check_then_accepts(ask: Ask, tmp_path: Path) -> None:
    text = ask(gpu_host(), "plan --format k8s", json.dumps(DEPLOYMENT), "pod.yaml")
    patch = tmp_path / "patch.yaml"
    patch.write_text(text)
    words = re.search(r"kubectl .*", text.splitlines()[0])
    assert words is not None
    done = run_program(words[0].replace("FILE", str(patch)).split())
    assert done.returncode == 0, done.stderr
    only = "check --json --only hugetlb.cgroup-limit"
    before = ask(gpu_host(), only, json.dumps(DEPLOYMENT), "pod.yaml")
    after = ask(gpu_host(), only, done.stdout, "merged.yaml")
    limits = [
        [one["status"] for one in of_check(found, "hugetlb.cgroup-limit")]
        for found in (before, after)
    ]
    assert "fail" in limits[0]
    assert "fail" not in limits[1]


def test_a_dependency_that_is_not_installed_is_no_defect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def needs_yaml() -> None:
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    told: list[str] = []

    def refuse(exit_code: int, message: str) -> int:
        told.append(message)
        return exit_code

    assert run_command(needs_yaml, "x", [], refuse) == exit_codes.USAGE
    assert "pip install PyYAML" in capsys.readouterr().err
    assert "pip install PyYAML" in told[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "at_boot", "status", "said"),
    [
        (8, "", "warn", "nothing sets pages of this size at boot"),
        (
            8,
            "vm.nr_hugepages = 278288",
            "warn",
            "set at boot is less than the launch takes",
        ),  # 139144 on each node
        (8, "vm.nr_hugepages = 294672", "pass", ""),
        (4, "vm.nr_hugepages = 236760", "warn", "118380 of 155528 on node 0"),
    ],
)
def test_what_is_set_at_boot_counts_where_it_will_lie(
    ask: Ask, gpus: int, at_boot: str, status: str, said: str
) -> None:
    """147336 pages on each node with 8 ranks, as plan has it; a sysctl spreads its number evenly. 4
    ranks on node 0: 4 x (14306 L2 + 4096 arena + 16384 of the segment), and 16384 free."""
    files = {"/etc/sysctl.d/90-mooncake.conf": at_boot} if at_boot else {}
    launch = HUGE if gpus == 8 else HUGE.replace("--tp 8", "--tp 4")
    on = replace(gpu_host(), files=files)
    # The weights do not fit on four of its 80 GB.
    words = "check --json --gpu-memory 141gb --only hugetlb.after-reboot"
    (found,) = ask(on, words, launch)["findings"]
    assert found["status"] == status
    assert said in found["text"]
    if status == "warn" and gpus == 8:
        (command,) = lines_of(found)
        rendered = ask(on, "plan --format sysctl", launch)
        assert "vm.nr_hugepages = 294672" in rendered
        assert "'vm.nr_hugepages = 294672'" in command


def test_what_a_json_file_gives_a_store_service_is_shown_beside_what_fits(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "local_hostname": "10.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "10.0.0.1:50051",
        "global_segment_size": "60GB",
    }
    (tmp_path / "store.json").write_text(json.dumps(config))
    launch = "python3 -m mooncake.mooncake_store_service --config=store.json\n"
    text = ask(gpu_host(), "fit --goal pool", launch)
    (row,) = [line for line in text.splitlines() if line.startswith("MOONCAKE_GLOBAL_SEGMENT_SIZE")]
    assert row.split()[1] == "60gb"


def test_a_plan_takes_json_as_the_other_commands_do(
    ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(gpu_host(), "plan --json", HUGE)["schema"] == "mooncake-preflight/plan/v1"
    assert run(["plan", "--json", "--format", "env", "--", "true"]) == exit_codes.USAGE
    assert "json and env" in json.loads(capsys.readouterr().out)["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fails"),
    [
        ("deepseek-ai/DeepSeek-R1", True),  # 641 GiB on one GPU of 80
        ("zai-org/GLM-4.5-FP8", True),  # 355 billion parameters of a byte
        ("zai-org/GLM-4.5-Air-AWQ", False),
        ("Qwen/Qwen3-32B", False),
    ],
)
def test_weights_too_large_for_their_gpus(ask: Ask, model: str, fails: bool) -> None:
    """SGLang's own message asks for a larger fraction, which cannot help: more GPUs do."""
    words = f"python3 -m sglang.launch_server --model-path {model} --tp 1"
    launch = f"{words} --enable-hierarchical-cache --hicache-size 10"
    answer = ask(gpu_host(), "check --json --only host-pools-refused", launch)
    said = [one["advice"] for one in answer["findings"] if one["status"] == "fail"]
    assert any("take more GPUs" in text for text in said) is fails
