"""Small launches, made of reports and trials on the real programs: what each is, and what not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.cli.main import run

Out = pytest.CaptureFixture[str]

SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2"
HICACHE = f"{SERVER} --page-size 64 --enable-hierarchical-cache"
STORE = f"{HICACHE} --hicache-size 20 --hicache-storage-backend mooncake"
SERVICE = "python3 -m mooncake.mooncake_store_service"
CLIENT = "mooncake_client --metadata_server=P2PHANDSHAKE --global_segment_size=80MB"


class Case(NamedTuple):
    """A launch, its status, and what its findings say: (id, status, a part of text or advice).
    never: what stands in no finding."""

    launch: str
    status: str
    says: tuple[tuple[str, str, str], ...]
    never: tuple[str, ...] = ()


def named_twice(metadata: str, name: str = "127.0.0.1:12345") -> str:
    settings = f"MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_LOCAL_HOSTNAME={name} "
    settings += f"MOONCAKE_PROTOCOL=tcp MOONCAKE_TE_META_DATA_SERVER={metadata} "
    master = "mooncake_master --enable_http_metadata_server=true"
    return f"{master} &\n{settings}{SERVICE} --port=8081 &\n{settings}{SERVICE} --port=8082 &\n"


HTTP = "http://127.0.0.1:8080/metadata"
TWICE = "client-name-twice"
UNSET = "launch.not-read"
ROUND = f"{HICACHE} --hicache-size 200 & pid=$!; sleep 60; "

CASES = {
    "one-name-twice": Case(named_twice(HTTP), "fail", ((TWICE, "fail", "127.0.0.1:12345"),)),
    "one-name-twice-peer-to-peer": Case(named_twice("P2PHANDSHAKE"), "unknown", (), (TWICE,)),
    "one-name-without-a-port": Case(named_twice(HTTP, "127.0.0.1"), "unknown", (), (TWICE,)),
    "one-name-twice-in-etcd": Case(
        named_twice("etcd://10.0.0.9:2379"), "fail", (("client-name-replaced", "fail", "SIGSEGV"),)
    ),
    "a-master-at-another-port": Case(
        f"mooncake_master --rpc_port 50051 &\n{CLIENT} --master_server_address=localhost:50053 "
        'protocol="rdma"\n',
        "unknown",
        (
            ("service-not-started", "warn", "listens on port 50051"),
            ("flag-without-dashes", "warn", "write --protocol=rdma instead of protocol=rdma"),
        ),
    ),
    "metadata-that-nobody-serves": Case(
        "mooncake_master --rpc_port 50051 &\nMOONCAKE_MASTER=127.0.0.1:50051 "
        f"MOONCAKE_PROTOCOL=tcp MOONCAKE_TE_META_DATA_SERVER={HTTP} {STORE}\n",
        "unknown",
        (("service-not-started", "warn", "serves no metadata"),),
    ),
    "metadata-that-the-master-serves": Case(
        "mooncake_master --enable_http_metadata_server=true &\nMOONCAKE_MASTER=127.0.0.1:50051 "
        f"MOONCAKE_PROTOCOL=tcp MOONCAKE_TE_META_DATA_SERVER={HTTP} {STORE}\n",
        "unknown",
        (),
        ("service-not-started",),
    ),
    "two-blocks-on-the-same-gpus": Case(
        f"{SERVER} --port 30000\n{SERVER} --port 30000\n",
        "warn",
        (("launch.misread", "warn", "both take the same GPUs and port 30000"),),
    ),
    "two-servers-that-share-nothing": Case(
        f"{SERVER} --port 30000\n{SERVER} --port 30001 --base-gpu-id 4\n",
        "unknown",
        (),
        ("foreground",),
    ),
    "several-etcd": Case(
        "MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_PROTOCOL=tcp "
        f'MOONCAKE_TE_META_DATA_SERVER="etcd://a:2379;etcd://b:2379" {STORE}\n',
        "unknown",
        (("endpoints-not-dialled", "warn", "etcd://b:2379 is not dialled"),),
        ("there is no port",),
    ),
    "rounds-that-are-killed": Case(
        f"one() {{ {ROUND}kill $pid; wait $pid; }}\nfor i in 1 2 3; do one; done\n",
        "pass",
        (),
        ("numa.node-memory", "ends processes between them"),
    ),
    "rounds-that-are-not-waited-for": Case(
        f"one() {{ {ROUND}kill $pid; }}\nfor i in 1 2 3; do one; done\n",
        "fail",
        (("gpu.count", "unknown", "ends processes between them"),),
    ),
    "another-image": Case(
        "docker run -d --network host lmsysorg/sglang:v0.5.15 python3 -m "
        "sglang_router.launch_router --worker-urls http://127.0.0.1:30000 --port 8000\n"
        f"docker run -d --gpus all --network host --ulimit memlock=-1 my-fork:nccl {SERVER} "
        "--my-fork-flag\n",
        "unknown",
        (("argument-unknown", "warn", "--my-fork-flag"),),
        ("0.5.15",),
    ),
    "the-server's-own-image": Case(
        "docker run -d my-router:1 python3 -m sglang_router.launch_router --port 8000\n"
        f"docker run -d --gpus all lmsysorg/sglang:v0.5.15 {SERVER} --my-fork-flag\n",
        "fail",
        (("arguments-refused", "fail", "0.5.15"),),
    ),
    "an-array's-element": Case(
        f'ARGS=(\n  --no-such-flag\n)\nexport A=1\n\n{SERVER} "${{ARGS[@]}}"\n',
        "fail",
        (("arguments-refused", "fail", "launch.sh:2 correct or remove --no-such-flag"),),
    ),
    "devices-that-are-overridden": Case(
        "export MC_MS_AUTO_DISC=1 MOONCAKE_DEVICE=mlx5_0 MOONCAKE_MASTER=10.0.0.1:50051\n"
        f"export MOONCAKE_PROTOCOL=rdma\n{STORE}\n",
        "fail",
        (("devices-overridden", "warn", "mlx5_0"),),
    ),
    "an-assignment-behind-numactl": Case(
        f"numactl --cpunodebind=0 MOONCAKE_MASTER=127.0.0.1:50051 {HICACHE}\n",
        "fail",
        (("launch.misread", "fail", "put the assignments in front of numactl"),),
    ),
    "a-case-of-what-nobody-sets": Case(
        'case "$KV" in\n  "") A=() ;;\n  mooncake) A=(--hicache-storage-backend mooncake) ;;\n'
        f'esac\n{HICACHE} --hicache-size 20 "${{A[@]}}"\n',
        "unknown",
        ((UNSET, "unknown", "KV is not set"),),
    ),
    "a-size-that-is-not-decided": Case(
        f'SIZE=0\nif [ "$CONC" = 12 ]; then SIZE=270; fi\n{HICACHE} --hicache-size "$SIZE"\n',
        "unknown",
        (
            ("launch.sizes", "unknown", "270 or 0 is not known"),
            (UNSET, "unknown", "CONC is not set"),
        ),
    ),
    "flags-that-are-not-decided": Case(
        'ARGS=(--hicache-ratio 0.75)\nif awk "BEGIN{exit !($CONC < 20)}"; then\n'
        f'  ARGS=(--hicache-size 270)\nfi\n{HICACHE} "${{ARGS[@]}}"\n',
        "unknown",
        (("launch.sizes", "unknown", "270 or nothing is not known"), (UNSET, "unknown", "0.75")),
    ),
    "a-server-in-a-substitution's-script": Case(
        f"JOB=$(bash ./submit.sh 8)\n{SERVER}\n",
        "unknown",
        ((UNSET, "unknown", "bash ./submit.sh"),),
    ),
    **{
        f"placeholder-{word}": Case(
            f"{HICACHE.replace('Qwen/Qwen3-14B', word)} --hicache-size 20\n",
            "unknown",
            ((UNSET, "unknown", f"write a value in place of {left_out}"),),
            ("well-known models",),
        )
        for word, left_out in (
            ("'xxxxxxx/Qwen3-14B'", "xxxxxxx"),
            ("'<model>'", "<model>"),
            ("/path/to/Qwen3-14B", "/path/to/Qwen3-14B"),
            ("'{{ model }}'", "{{ model }}"),
        )
    },
}


def judged(path: Path, capsys: Out) -> tuple[Any, list[dict[str, Any]]]:
    run(["check", "--json", "--root", "demo:h800", str(path)])
    answer = json.loads(capsys.readouterr().out)
    return answer, [one for one in answer["findings"] if one["status"] != "pass"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_small_launch(case: Case, tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(case.launch)
    answer, findings = judged(path, capsys)
    assert answer["status"] == case.status, answer["reason"]
    said = [(one["check"], one["status"], json.dumps(one)) for one in findings]
    for check, status, part in case.says:
        assert any(
            (check, status) == (id_, level) and json.dumps(part)[1:-1] in text
            for id_, level, text in said
        ), (check, status, part, said)
    for part in case.never:
        assert not any(part in text for _, _, text in said), part


POD = """apiVersion: v1
kind: Pod
metadata: {name: store}
spec:
  containers:
  - name: store
    image: lmsysorg/sglang:v0.5.9
    command: [sh, -c, "COMMAND"]
    env:
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: MOONCAKE_LOCAL_HOSTNAME, value: "$(POD_IP)"}
    - {name: MOONCAKE_MASTER, value: "mc-master:50051"}
    - {name: MOONCAKE_TE_META_DATA_SERVER, value: P2PHANDSHAKE}
"""


def test_what_kubernetes_gives_is_not_unset(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("COMMAND", f"exec {SERVICE} --port=8099"))
    _, findings = judged(path, capsys)
    told = [one for one in findings if one["check"] == "network.advertised-address"]
    assert "given by Kubernetes when the pod starts" in json.dumps(told)
    assert "under the container's env" not in json.dumps(findings)
    path.write_text(POD.replace("COMMAND", "mooncake_master --rpc_address=$(POD_IP)"))
    answer, findings = judged(path, capsys)
    assert answer["status"] == "pass"
    assert {one["status"] for one in findings} <= {"skip"}


def test_the_model_of_a_job_of_srt_slurm_is_the_mounted_one(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: j\nmodel: {path: 'hf:Qwen/Qwen3-14B', container: sglang}\n"
        "resources: {agg_nodes: 1, agg_workers: 1}\n"
        "backend:\n  type: sglang\n  sglang_config:\n    aggregated:\n      model-path: /model/\n"
    )
    run(["read", "--json", str(path)])
    answer = json.loads(capsys.readouterr().out)["answer"]
    (server,) = [one for one in answer["processes"] if one["program"].endswith("sglang")]
    assert server["settings"]["model_path"]["value"] == "Qwen/Qwen3-14B"


@pytest.mark.parametrize("nested", ["$(", "$(echo ", '"$(echo ', "${A:-", "( :; ", "{ "])
def test_what_is_nested_by_thousands_is_named(nested: str, tmp_path: Path, capsys: Out) -> None:
    closing = {"$": ")", '"': ')"', "(": ")", "{": "; }"}[nested[0]]
    closing = "}" if nested.startswith("${") else closing
    path = tmp_path / "launch.sh"
    path.write_text(f"{SERVER} --port 1\necho {nested * 3000}{closing * 3000}\n{SERVER} --port 2\n")
    assert run(["check", "--root", "demo:h800", str(path)]) != 70
    assert "Traceback" not in capsys.readouterr().err
