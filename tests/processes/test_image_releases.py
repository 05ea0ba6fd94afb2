"""Which releases an image's name tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.processes.image_releases import image_releases
from tests.processes.test_unread import sized


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("vllm/vllm-openai:v0.11.0", {"vllm": "0.11.0"}),
        ("registry.example/vllm/vllm-openai:v0.11.0-cu129", {"vllm": "0.11.0"}),
        ("lmsysorg/sglang:v0.5.9-cu129", {"sglang": "0.5.9"}),
        ("lmcache/vllm-openai:v0.3.9.post2", {"lmcache": "0.3.9.post2"}),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.1", {"dynamo": "0.8.1", "vllm": "0.12.0"}),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:0.7.0-cuda13",
         {"dynamo": "0.7.0", "sglang": "0.5.4.post3"}),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1", {"dynamo": "0.8.1"}),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:9.9.9", {"dynamo": "9.9.9"}),
        ("vllm/vllm-openai:latest", {}),
        ("example/vllm:v0.11.0", {}),
    ],
)  # fmt: skip
def test_releases_of_an_image(image: str, found: dict[str, str]) -> None:
    assert image_releases(image) == found


@pytest.mark.parametrize(
    ("tag", "said"),
    [("v0.11.0", ["vLLM server: 0.11.0 by its image: read as vLLM 0.33.0"]), ("v0.33.0", []),
     ("latest", [])],
)  # fmt: skip
def test_an_engine_of_another_release_is_said(tmp_path: Path, tag: str, said: list[str]) -> None:
    line = f"docker run --entrypoint vllm vllm/vllm-openai:{tag} serve m\n"
    found = sized(tmp_path, line).inputs.findings
    texts = [one.text for one in found if one.rule.id == "consumer-release"]
    assert [text.partition(": its settings")[0] for text in texts] == said
