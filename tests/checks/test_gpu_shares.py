"""Servers that take one GPU: vLLM wants a part of the whole, SGLang one of what is free."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from preflight.cli.main import run
from tests.rows import subject, told

SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static"
COMPOSE = """
services:
  one:
    image: vllm/vllm-openai:v0.11.0
    command: [--model, Qwen/Qwen3-8B]
    deploy: {resources: {reservations: {devices: [{device_ids: ['%s'], capabilities: [gpu]}]}}}
  two:
    image: %s
    command: %s
    deploy: {resources: {reservations: {devices: [{device_ids: ['3'], capabilities: [gpu]}]}}}
"""
VLLM = ("vllm/vllm-openai:v0.11.0", "[--model, Qwen/Qwen3-4B]")
SERVER = ("lmsysorg/sglang:v0.5.9", f"{SGLANG} 0.8")
TWO = (
    "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization %s &\n"
    "vllm serve Qwen/Qwen3-4B --port 1 --gpu-memory-utilization %s &"
)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers:
  - name: c
    image: vllm/vllm-openai:v0.11.0
    args: [--model, Qwen/Qwen3-8B]
    resources: {limits: {nvidia.com/gpu: 1}}
---
"""


def findings_of(tmp_path: Path, text: str, check: str = "gpu.count") -> list[Any]:
    """What one check says of a launch on a host of eight GPUs."""
    path = tmp_path / ("launch.yaml" if ":\n" in text else "launch.sh")
    path.write_text(text)
    out = io.StringIO()
    words = ["check", "--json", "--only", check, "--root", "demo:h800", "--timeout", "600"]
    with contextlib.redirect_stdout(out):
        run([*words, str(path)])
    return [one for one in json.loads(out.getvalue())["findings"] if one["check"] == check]


def judged(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    """Return status and subject of what is said of GPUs that are shared, the worst first."""
    return [
        (one["status"], subject(one))
        for one in findings_of(tmp_path, text)
        if subject(one)[:1].isdigit() or subject(one).startswith("GPU")
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Two of vLLM's defaults: the later one's own check of what is free.
        ("vllm serve Qwen/Qwen3-8B &\nvllm serve Qwen/Qwen3-4B --port 1 &", ["fail"]),
        (
            "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.3 &\n"
            "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization=.7 --port 1 &",
            [],
        ),
        (TWO % ("0.5", "0.5"), []),
        (TWO % ("0.5", "0.51"), ["fail"]),
        # kill may have ended another one.
        ("vllm serve Qwen/Qwen3-8B & kill $1\nvllm serve Qwen/Qwen3-4B --port 1 &", ["unknown"]),
        # What runs first has ended.
        ("vllm serve Qwen/Qwen3-8B\nvllm serve Qwen/Qwen3-4B --port 1", []),
        (
            "for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve Qwen/Qwen3-8B --port 80$i & done",
            [],
        ),
        ("for i in 0 1; do CUDA_VISIBLE_DEVICES=$X$i vllm serve Qwen/Qwen3-8B & done", []),
        # It may take less: a KV cache by size, a model that nobody here knows.
        (
            "vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 1G &\n"
            "vllm serve Qwen/Qwen3-4B --port 1 &",
            ["warn"],
        ),
        ("vllm serve BAAI/bge-m3 &\nvllm serve Qwen/Qwen3-4B --port 1 &", ["warn"]),
        # One of two ways is taken.
        (
            'if [ "$1" = a ]; then vllm serve Qwen/Qwen3-8B & else '
            "vllm serve Qwen/Qwen3-4B --port 1 & fi",
            ["warn"],
        ),
        # SGLang first holds its part; vLLM first leaves it a part of the rest.
        (f"{SGLANG} 0.5 &\nvllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.6 &", ["fail"]),
        (f"vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.6 &\n{SGLANG} 0.5 &", ["warn"]),
        (f"{SGLANG} 0.3 &\nvllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.6 &", []),
        (f"{SGLANG} 0.8 --tp 2 &\n{SGLANG} 0.8 --port 1 --tp 2 --base-gpu-id 1 &", ["warn"]),
        # Containers have the GPUs that they are given.
        (
            "docker run -d --gpus '\"device=2,0\"' vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
            "docker run -d --gpus device=0 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-4B",
            ["fail"],
        ),
        (COMPOSE % ("3", *VLLM), ["fail"]),
        (COMPOSE % ("3", *SERVER), ["warn"]),
        (POD % "a" + POD % "b", []),
    ],
)
def test_one_gpu_for_two(tmp_path: Path, text: str, expected: list[str]) -> None:
    found = judged(tmp_path, text)
    assert [status for status, _ in found] == expected, found


RUN = "docker run %s lmsysorg/sglang:v0.5.9 " + SGLANG.partition(" --mem")[0] + " --tp %s\n"
GPU_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: s
    image: lmsysorg/sglang:v0.5.9
    command: [python, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B, --tp, "%s"]
    resources: {limits: {nvidia.com/gpu: %s}}
"""
OTHER_CONTAINER = """\
  - name: other
    image: nginx
    resources: {limits: {amd.com/gpu: 1}}
"""
GPU_SERVICE = """\
services:
  a:
    image: lmsysorg/sglang:v0.5.9
    command: python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp %s
    %s
"""
RESERVED = "deploy: {resources: {reservations: {devices: [{capabilities: [gpu], %s}]}}}"


@pytest.mark.parametrize(
    ("text", "status", "have"),
    [
        (RUN % ("--gpus all", 8), "pass", "8 visible"),
        (RUN % ("--gpus 2", 8), "fail", "2 given"),
        (RUN % ("--gpus 'count=2,capabilities=utility'", 4), "fail", "2 given"),
        (RUN % ("--gpus '\"device=2,3\"'", 4), "fail", "2 given"),
        (RUN % ("--gpus '\"device=8,9\"'", 2), "fail", "none visible"),  # of eight
        (RUN % ("--gpus $N", 2), "unknown", ""),
        # In the container they are 0 and 1.
        (RUN % ("--gpus '\"device=4,5\"' -e CUDA_VISIBLE_DEVICES=4,5", 2), "fail", "none visible"),
        (RUN % ("--gpus '\"device=4,5\"' -e CUDA_VISIBLE_DEVICES=1,0", 2), "pass", "2 visible"),
        (RUN % ("--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0,1", 4), "fail", "2 given"),
        (RUN % ("--device nvidia.com/gpu=0 --device nvidia.com/gpu=1", 4), "fail", "2 given"),
        # What gives GPUs without a word of them: only what is certain passes.
        (RUN % ("", 8), "unknown", ""),
        (RUN % ("--device /dev/infiniband --privileged", 8), "unknown", ""),
        (RUN % ("--runtime runc", 9), "fail", "8 visible"),
        (RUN % ("--runtime=nvidia", 8), "pass", "8 visible"),
        (RUN.replace("docker", "nvidia-docker") % ("", 8), "pass", "8 visible"),
        (RUN.replace("docker", "podman") % ("", 8), "unknown", ""),
        (RUN % ("--device /dev/nvidiactl --device /dev/nvidia0", 2), "fail", "1 given"),
        (RUN % ("--device /dev/kfd --device /dev/dri", 8), "pass", "8 visible"),
        (GPU_SERVICE % (4, ""), "unknown", ""),
        (GPU_SERVICE % (4, "runtime: nvidia"), "pass", "8 visible"),
        (GPU_SERVICE % (4, "devices: ['nvidia.com/gpu=0']"), "fail", "1 given"),
        (GPU_POD.replace("limits", "requests") % (2, 2), "unknown", ""),
        (
            GPU_POD.replace("nvidia.com/gpu: %s", "volcano.sh/vgpu-number: %s") % (2, 2),
            "unknown",
            "",
        ),
        (
            GPU_POD.replace("spec:\n", "spec:\n  runtimeClassName: nvidia\n").replace(
                "nvidia.com/gpu: %s", "cpu: %s"
            )
            % (2, 2),
            "pass",
            "8 visible",
        ),
        (GPU_POD.replace("nvidia.com", "amd.com") % (2, 2), "fail", "none given"),  # of NVIDIA's
        # Each resource is another maker's: no node of one maker has both.
        (GPU_POD.replace("%s}}", "%s, amd.com/gpu: 1}}") % (2, 2), "fail", "none given"),
        (GPU_POD.replace("%s}}", "%s, amd.com/gpu: 0}}") % (2, 2), "pass", "2 visible"),
        ((GPU_POD + OTHER_CONTAINER) % (2, 2), "fail", "none given"),
        (GPU_POD % (8, 4), "fail", "4 given"),
        (GPU_POD % (1, 0), "fail", "none given"),
        (GPU_SERVICE % (4, "gpus: all"), "pass", "8 visible"),
        (GPU_SERVICE % (4, "gpus: [{count: 2}]"), "fail", "2 given"),
        (GPU_SERVICE % (4, RESERVED % "count: all"), "pass", "8 visible"),
        (GPU_SERVICE % (4, RESERVED % "count: 2"), "fail", "2 given"),
        (GPU_SERVICE % (4, RESERVED % "device_ids: ['0', '3']"), "fail", "2 given"),
        (GPU_SERVICE % (2, RESERVED % "device_ids: ['${A}', '3']"), "unknown", ""),
    ],
)
def test_a_container_has_the_gpus_that_it_is_given(
    tmp_path: Path, text: str, status: str, have: str
) -> None:
    (found,) = findings_of(tmp_path, text)
    assert (found["status"], told(found, "have")) == (status, have)


def test_names_without_quotes_of_their_own_are_a_count_too(tmp_path: Path) -> None:
    """Docker reads a row of CSV: device=2, and 3 of them; the daemon refuses both together."""
    (found,) = findings_of(tmp_path, RUN % ("--gpus device=2,3", 1), "launch.misread")
    assert found["status"] == "fail"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("vllm serve m -tp 2 -pp 2 -dp 2", ["pass"]),
        # Which release it is decides: the older takes Ray, which may know other hosts.
        ("vllm serve m -tp 16", ["warn"]),
        ("docker run --gpus all vllm/vllm-openai:v0.11.0 m -tp 16", ["warn"]),
        ("docker run --gpus all vllm/vllm-openai:v0.11.1 m -tp 16", ["fail"]),
        ("vllm serve m -tp 16 --distributed-executor-backend mp", ["fail"]),
        ("vllm serve m -tp 16 --distributed-executor-backend $BACKEND", ["warn"]),
        ("vllm serve m -tp 16 --distributed-executor-backend ray", ["skip"]),
        ("vllm serve m -tp $N", ["skip"]),
        # One engine fits, and all of them do not: no engine asks for more than the host has.
        ("vllm serve m -tp 4 -dp 4", ["fail"]),
        ("vllm serve m -tp 4 -dp 4 --data-parallel-size-local 2", ["pass"]),
        ("vllm serve m -tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1", ["pass"]),
        ("docker run --gpus 2 vllm/vllm-openai:v0.12.0 m -tp 4", ["fail"]),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 4 --distributed-executor-backend mp", ["fail"]),
        # Nothing says that the container has any: not judged, as before.
        ("docker run vllm/vllm-openai:v0.12.0 m -tp 4", ["skip"]),
    ],
)
def test_more_workers_of_vllm_than_gpus(tmp_path: Path, words: str, expected: list[str]) -> None:
    assert [one["status"] for one in findings_of(tmp_path, words)] == expected
