"""Servers that take one GPU: vLLM wants a part of the whole, SGLang one of what is free."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from preflight.cli.main import run

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


def judged(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    """Return status and subject of what is said of GPUs that are shared, the worst first."""
    path = tmp_path / ("launch.yaml" if ":\n" in text else "launch.sh")
    path.write_text(text)
    out = io.StringIO()
    words = ["check", "--json", "--only", "gpu.count", "--root", "demo:h800", "--timeout", "600"]
    with contextlib.redirect_stdout(out):
        run([*words, str(path)])
    findings = json.loads(out.getvalue())["findings"]
    return [
        (one["status"], one["subject"])
        for one in findings
        if one["subject"][:1].isdigit() or one["subject"].startswith("GPU")
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
        # As before: SGLang beside SGLang.
        (f"{SGLANG} 0.8 &\n{SGLANG} 0.8 --port 1 &", ["warn"]),
        (
            f"CUDA_VISIBLE_DEVICES=1,0 {SGLANG} 0.8 &\n"
            f"CUDA_VISIBLE_DEVICES=1 {SGLANG} 0.8 --port 1 &",
            ["warn"],
        ),
        # Containers have the GPUs that they are given.
        (
            "docker run -d --gpus '\"device=2,0\"' vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
            "docker run -d --gpus device=0 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-4B",
            ["fail"],
        ),
        (
            "docker run -d --gpus device=2 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
            "docker run -d --gpus device=3 vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-4B",
            [],
        ),
        (
            "docker run -d --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
            "vllm serve Qwen/Qwen3-4B --port 1",
            ["fail"],
        ),
        (
            "docker run -d vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
            "vllm serve Qwen/Qwen3-4B --port 1",
            [],
        ),
        (COMPOSE % ("3", *VLLM), ["fail"]),
        (COMPOSE % ("2", *VLLM), []),
        (COMPOSE % ("3", *SERVER), ["warn"]),
        (POD % "a" + POD % "b", []),
    ],
)
def test_one_gpu_for_two(tmp_path: Path, text: str, expected: list[str]) -> None:
    found = judged(tmp_path, text)
    assert [status for status, _ in found] == expected, found


def test_the_gpu_of_the_host_is_named(tmp_path: Path) -> None:
    """Whatever its number is where CUDA shows it: GPU 3 of the demo host is at 45:00.0."""
    text = (
        "docker run -d --gpus '\"device=3,2\"' -e CUDA_VISIBLE_DEVICES=1 "
        "vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B\n"
        "CUDA_VISIBLE_DEVICES=2,3 vllm serve Qwen/Qwen3-4B --tensor-parallel-size 2 --port 1"
    )
    assert judged(tmp_path, text) == [("fail", "0000:45:00.0")]
