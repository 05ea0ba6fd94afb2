"""Which releases an image's name tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.root import Root
from checks.releases.sglang import NEWEST_KNOWN, RELEASES, parse_version
from preflight.cli.main import run
from preflight.launch_problems.rules.launch_rules import findings, problems_of
from preflight.launches.shell_script import read_script
from preflight.needs.chosen_releases import with_image
from preflight.processes.image_releases import image_releases, sglang_dates
from preflight.processes.processes import LaunchOptions
from preflight.verdict.store_keys import Meeting, compare_keys, launch_keys
from tests.builders.launch_text import SERVER, understood
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
        ("lmsysorg/sglang-rocm:v0.5.16-rocm720-mi35x-20260726", {"sglang": "0.5.16+nightly"}),
        ("lmsysorg/sglang:v0.5.12-rocm700-mi35x-20260519-a1b2c3d", {"sglang": "0.5.12+nightly"}),
        ("team/vllm-openai:lmcache-v0.8.5-20250418", {}),
        ("nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.0-glm-5.2-dev.1", {"dynamo": "1.3.0"}),
        ("lmsysorg/sglang:nightly-dev-20260818-c0b6474b", {"sglang": "0.5.17+nightly"}),
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


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("pip install vllm==0.11.0\nvllm serve m\n", ["0.11.0 by pip: read as vLLM 0.33.0"]),
        ("uv pip install 'vllm[audio]==0.11'\nvllm serve m\n", []),
        ("pip install vllm==0.33.0\nvllm serve m\n", []),
        ("pip install vllm==0.11.0\npip install vllm==0.12.0\nvllm serve m\n", []),
        (f"pip install lmcache==0.3.9\nvllm serve m --kv-transfer-config '{LMCACHE}'\n",
         ["0.3.9 by pip: read as LMCache 0.5.6"]),
        ("pip install lmcache==0.3.9\nvllm serve m\n", []),
        ("pip3 install lmcache==0.3.9\nlmcache server --l1-size-gb 1 --eviction-policy LRU\n",
         ["0.3.9 by pip: read as LMCache 0.5.6"]),
        # In the same container it replaces what the image has; beside it, it is another place's.
        (f'{CONTAINER} --entrypoint sh {IMAGE} -c "pip install vllm==0.12.0 && vllm serve m"\n',
         ["0.12.0 by pip: read as vLLM 0.33.0"]),
        (f"pip install vllm==0.12.0\n{CONTAINER} --entrypoint vllm {IMAGE} serve m\n",
         ["0.11.0 by its image: read as vLLM 0.33.0"]),
    ],
)  # fmt: skip
def test_what_pip_installs_decides_the_release(
    tmp_path: Path, script: str, said: list[str]
) -> None:
    found = problems_of(sized(tmp_path, script).inputs)
    texts = [one.text for one in found if one.id == "consumer-release"]
    assert [text.partition(": ")[2] for text in texts] == said


def test_keys_of_two_releases_of_lmcache_are_unknown(tmp_path: Path) -> None:
    extra = json.loads(LMCACHE)
    extra["kv_connector_extra_config"] |= {
        "lmcache.remote_url": "mooncakestore://a:1",
        "lmcache.extra_config": {
            "local_hostname": "a",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": "a:1",  # 0.3.9 reads this one, 0.5.6 the other
            "mooncake_master_server_addr": "a:1",
        },
    }
    line = f"PYTHONHASHSEED=0 vllm serve m --kv-transfer-config '{json.dumps(extra)}'"
    install = "pip install lmcache=={}\n"
    one, same, other = (
        launch_keys(sized(tmp_path, install.format(release) + line + "\n"))[0]
        for release in ("0.5.6", "0.5.6", "0.3.9")
    )
    assert compare_keys(one, same).verdict is Meeting.EQUAL
    assert compare_keys(one, other).verdict is Meeting.UNKNOWN


@pytest.mark.parametrize(
    ("name", "runs"),
    [("LMCacheConnectorV1", True), ("LMCacheMPConnector", True), ("MooncakeConnector", False)],
)
def test_what_runs_in_an_engine_beside_it(tmp_path: Path, name: str, runs: bool) -> None:
    """LMCache that is installed, and that no connector loads, has no part in it."""
    line = f"vllm serve m --kv-transfer-config '{LMCACHE}'".replace("LMCacheConnectorV1", name)
    (process,) = sized(tmp_path, line + "\n").inputs.processes
    assert process.consumer is not None
    assert bool(process.consumer.parts) is runs


FLAG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --cuda-graph-max-bs 8"


@pytest.mark.parametrize(
    ("text", "rule", "status"),
    [
        (FLAG, "arguments-refused", "fail"),
        (f"docker run lmsysorg/sglang:v0.5.23 {FLAG}", "arguments-refused", "fail"),
        (f"docker run lmsysorg/sglang:latest {FLAG}", "argument-unknown", "warn"),
        (f"docker run lmsysorg/sglang:v0.5.9 {FLAG}", "", ""),
    ],
)
def test_what_a_host_has_installed_says_nothing_of_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, rule: str, status: str
) -> None:
    """demo:h800 has SGLang 0.5.23, where that flag's beginning fits two."""
    (tmp_path / "launch.sh").write_text(text)
    run(["check", "--json", "--root", "demo:h800", str(tmp_path / "launch.sh")])
    found = json.loads(capsys.readouterr().out)["findings"]
    said = [(one["check"], one["status"]) for one in found if one["check"].startswith("argument")]
    assert [one for one in said if one[1] != "pass"] == ([(rule, status)] if rule else [])


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


@each_row(
    ("image", "release"),
    [
        # The last release before that night, and more.
        ("lmsysorg/sglang:nightly-dev-cu13-20260805", "0.5.16+nightly"),
        ("lmsysorg/sglang:nightly-dev-20260808-0a1b2c3d", "0.5.16+nightly"),
        ("registry:5000/x/sglang:dev-20260809", "0.5.17+nightly"),
        ("sglang-rocm:v0.5.12-rocm700-20260601", "0.5.12.post1+nightly"),
        ("lmsysorg/sglang:nightly-dev-20270101", f"{NEWEST_KNOWN}+nightly"),
        # Before the table begins, and without a day, nothing is known.
        *((f"lmsysorg/sglang:{tag}", None) for tag in ("nightly-20250101", "dev", "dev-cu13")),
        ("vllm/vllm-openai:nightly-20260805", None),
        ("lmsysorg/sglang:v0.5.9-dev", "0.5.9"),
    ],
)
def test_the_day_in_a_tag_bounds_the_release(image: str, release: str | None) -> None:
    assert image_releases(image).get("sglang") == release


def test_each_release_that_is_known_has_its_day() -> None:
    dates = sglang_dates()
    assert list(dates) == sorted(dates, key=parse_version)
    assert list(dates.values()) == sorted(dates.values())
    assert {row.first for row in RELEASES[1:]} <= {*map(parse_version, dates)}


@each_row("tag", ["nightly-dev-cu13-20260805", "nightly-dev-20260805-0a1b2c3d", "dev", "dev-cu13"])
def test_a_build_of_no_release_is_refused_only_what_every_release_refuses(tag: str) -> None:
    """What the newest refuses may be right there, and what it takes as well."""
    serve = f"docker run lmsysorg/sglang:{tag} {SERVER}"

    def refused(words: str) -> set[str]:
        found = findings(understood(*read_script(f"{serve} {words}", "x", {}).commands))
        return {each.id for each in found if "argument" in each.id}

    assert not refused("--cuda-graph-max-bs 64")  # ambiguous from 0.5.20 on
    assert not refused("--brand-new-flag 1")
    assert refused("--tp-size x") == {"arguments-refused"}
    assert refused("--hicache-ration 2") == {"arguments-refused"}
