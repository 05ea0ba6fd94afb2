"""Where SGLang sets the page size itself, a launch gives the same answer whatever it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.unknown import Unknown
from preflight.launch_problems.rules.launch_rules import problems_of
from preflight.processes.processes import LaunchOptions
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.builders.launch_text import MASTER
from tests.needs.test_source_sizing import HUGE, STORE, pages, size

SERVER = (
    "python3 -m sglang.launch_server --tp 2 --kv-cache-dtype bf16 --enable-hierarchical-cache "
    f"--hicache-size 20 {STORE}"
)
GLM = "--model-path zai-org/GLM-5.2-FP8"
V3 = "--model-path deepseek-ai/DeepSeek-V3"
QWEN = "--model-path Qwen/Qwen3-14B"
V4 = "--model-path deepseek-ai/DeepSeek-V4-Flash"
M3 = "--model-path MiniMaxAI/MiniMax-M3"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return Host({2 * MIB: HostPool(total=60000)}, memory_bytes=512 * GIB).write(tmp_path)


def page_of(host: Path, words: str, version: str) -> object:
    options = LaunchOptions(mooncake_version="0.3.14", sglang_version=version)
    (process,) = size(host, (f"{SERVER} {words}", MASTER), options=options).inputs.processes
    assert process.server is not None
    return process.server.value("page_size")


@pytest.mark.parametrize(
    ("words", "version", "page"),
    [
        (GLM, "0.5.2", None),
        (GLM, "0.5.3", 64),
        (f"{GLM} --page-size 1", "0.5.23", 64),
        (f"{GLM} --page-size 128", "0.5.23", 64),
        (f"{GLM} --device npu", "0.5.23", None),  # other makers' branches are not read
        (V3, "0.5.23", None),
        (f"{V3} --attention-backend flashmla", "0.5.2", 64),
        (f"{V3} --decode-attention-backend flashmla --page-size 32", "0.5.23", 64),
        (f"{V3} --prefill-attention-backend flashmla", "0.5.23", None),
        (f"{V3} --attention-backend trtllm_mla --page-size 32", "0.5.23", 32),
        (f"{V3} --attention-backend trtllm_mla --page-size 16", "0.5.23", 64),
        (f"{V3} --attention-backend cutlass_mla", "0.5.19", 128),
        (f"{V3} --attention-backend tokenspeed_mla", "0.5.22", 64),
        (f"{V3} --prefill-attention-backend cutedsl_mla", "0.5.23", 64),
        (f"{QWEN} --attention-backend trtllm_mha --page-size 128", "0.5.16", 64),
        (f"{QWEN} --attention-backend trtllm_mha --page-size 128", "0.5.17", 128),
        (f"{QWEN} --attention-backend fa3", "0.5.23", None),
        (V4, "0.5.12", 256),
        (f"{V4} --page-size 64", "0.5.23", 256),
        (M3, "0.5.16", 128),
        (f"{M3} --page-size 64", "0.5.16", 64),
        (M3, "0.5.15", None),
    ],
)
def test_the_page_that_sglang_sets(host: Path, words: str, version: str, page: int | None) -> None:
    """server_args.py of each release, and from 0.5.15 on arg_groups."""
    assert page_of(host, words, version) == page


def test_a_backend_that_nobody_knows_leaves_the_page_unknown(host: Path) -> None:
    open_backend = f"{V3} --attention-backend $BACKEND"
    assert isinstance(page_of(host, open_backend, "0.5.23"), Unknown)
    assert page_of(host, f"{open_backend} --page-size 64", "0.5.23") == 64


@pytest.mark.parametrize("words", [GLM, f"{V3} --attention-backend flashmla"])
@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_written_or_not_the_pages_and_rules_are_the_same(
    host: Path, words: str, version: str
) -> None:
    answers = []
    for page in ("", "--page-size 1", "--page-size 64"):
        options = LaunchOptions(mooncake_version="0.3.14", sglang_version=version)
        sizing = size(host, (f"{SERVER} {words} {page}", {**MASTER, **HUGE}), options=options)
        rules = {finding.id for finding in problems_of(sizing.inputs)}
        assert "page-size-one" not in rules
        answers.append((pages(sizing), rules))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] > 0
