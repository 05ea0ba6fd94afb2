"""Which releases an image's name tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.root import Root
from preflight.launches.shell_script import read_script
from preflight.needs.chosen_releases import with_image
from preflight.processes.image_releases import image_releases
from preflight.processes.processes import LaunchOptions
from preflight.verdict.store_keys import Meeting, compare_keys, launch_keys
from tests.processes.test_unread import sized
from tests.tables import each_row


@each_row(
    ("image", "found"),
    [
        ("vllm/vllm-openai:v0.11.0", {"vllm": "0.11.0"}),
        ("lmsysorg/sglang:v0.5.9-cu129", {"sglang": "0.5.9"}),
        ("lmcache/vllm-openai:v0.3.9.post2", {"lmcache": "0.3.9.post2"}),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.8.1", {"dynamo": "0.8.1", "vllm": "0.12.0"}),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:0.7.0-cuda13",
         {"dynamo": "0.7.0", "sglang": "0.5.4.post3"}),
        ("nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1", {"dynamo": "0.8.1"}),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:9.9.9", {"dynamo": "9.9.9"}),
        ("mirror.example/team/vllm-openai:v0.22.0-cu129", {"vllm": "0.22.0"}),
        ("mirror.example/ai-dynamo-vllm-runtime:1.2.0", {"dynamo": "1.2.0", "vllm": "0.20.1"}),
        ("lmsysorg/sglang:v0.5.14-cu130@sha256:5027", {"sglang": "0.5.14"}),
        ("/images/lmsysorg+sglang+v0.5.5.post2.sqsh", {"sglang": "0.5.5.post2"}),
        ("lmsysorg#sglang:v0.5.9", {"sglang": "0.5.9"}),
        ("sglang-v0.5.11-cu130", {"sglang": "0.5.11"}),
        ("lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x", {"sglang": "0.5.16"}),
        ("kvcacheai/mooncake:0.3.13.post1", {"mooncake": "0.3.13.post1"}),
        ("mirror.example/team/mooncake:0.3.7.post2-sglang0.5.5.post3-deepep",
         {"mooncake": "0.3.7.post2", "sglang": "0.5.5.post3"}),
        ("mirror.example/team/temp:0.3.4.post2-sglang0.4.10.post2-py312",
         {"sglang": "0.4.10.post2"}),
        ("ghcr.io/team/engine:vllm-ascend_v0.10.1rc1_mooncake_v0.3.5", {"mooncake": "0.3.5"}),
        ("team/dev:sglang-0.5.9-rocm720", {"sglang": "0.5.9"}),
        # Built from what came after the release: each night, or for one model.
        ("lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260726", {}),
        ("lmsysorg/sglang:v0.5.12-rocm700-mi35x-20260519-a1b2c3d", {}),
        ("team/vllm-openai:lmcache-v0.8.5-20250418", {}),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.0-glm-5.2-dev.1", {"dynamo": "1.3.0"}),
        ("lmsysorg/sglang:nightly-dev-20260818-c0b6474b", {}),
        ("lmsysorg/sglang-router:v0.2.2", {}),
        ("mirror.example/team/vllm-openai:v0.7.3.self.post1", {}),
        ("/images/sglang.sqsh", {}),
        ("example/vllm:v0.11.0", {}),
    ],
)  # fmt: skip
def test_releases_of_an_image(image: str, found: dict[str, str]) -> None:
    assert image_releases(image) == found


CONTAINER, IMAGE = "docker run", "vllm/vllm-openai:v0.11.0"
LMCACHE = (
    '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", '
    '"kv_connector_extra_config": {"lmcache.max_local_cpu_size": 1}}'
)


def test_keys_of_two_releases_of_lmcache_are_unknown(tmp_path: Path) -> None:
    extra = json.loads(LMCACHE)
    extra["kv_connector_extra_config"] |= {
        "lmcache.remote_url": "mooncakestore://a:1",
        "lmcache.extra_config": {"local_hostname": "a", "metadata_server": "P2PHANDSHAKE"},
    }
    line = f"PYTHONHASHSEED=0 vllm serve m --kv-transfer-config '{json.dumps(extra)}'"
    install = "pip install lmcache=={}\n"
    one, same, other = (
        launch_keys(sized(tmp_path, install.format(release) + line + "\n"))[0]
        for release in ("0.5.6", "0.5.6", "0.3.9")
    )
    assert compare_keys(one, same).verdict is Meeting.EQUAL
    assert compare_keys(one, other).verdict is Meeting.UNKNOWN


FLAG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --cuda-graph-max-bs 8"


@pytest.mark.parametrize(("marks", "in_image"), [({}, True), ({"/.dockerenv": ""}, False)])
def test_in_a_container_what_is_installed_may_be_the_images(
    tmp_path: Path, marks: dict[str, str], in_image: bool
) -> None:
    mounts = {"/proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"}
    for path, content in (mounts | marks).items():
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_text(content)
    text = f"docker pull lmsysorg/sglang:latest\npkill -f sglang\ndocker run x/sglang:1 {FLAG}\n"
    reading = read_script(text, "a.sh", {})
    options = with_image(LaunchOptions(), reading, Root(str(tmp_path)))
    assert (options.installed is not None and options.installed.in_image) is in_image
