"""``mooncake-preflight capacity`` as users and scripts meet it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.builders.hosts import GIB, Host
from tests.capacity.test_capacity_published import H800_L2, H800_POOL
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/capacity-v1.schema.json").read_text())
VERSIONS = ("--mooncake-version", "0.3.14", "--sglang-version", "0.5.23")

Ask = Callable[..., int]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run ``capacity`` on a large host, about a script where one is given."""
    Host(memory_bytes=2048 * GIB).write(tmp_path / "host")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str, script: str | None = None) -> int:
        if script is not None:
            (tmp_path / "run.sh").write_text(script)
            words = (*words, "run.sh")
        # Without a launch there is nothing that they could be versions of.
        versions = VERSIONS if words and words[-1:] != ("--json",) else ()
        return run(["capacity", "--root", str(tmp_path / "host"), *versions, *words])

    return call


def test_the_text_says_what_holds_and_when_it_no_longer_does(
    ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--gpu-memory", "80gb", script=H800_L2) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "L2 host memory 223.53 GiB 623,360 30" in lines
    assert "3 491,520 327,680 0 to 50% 100% L1" in lines
    assert "4 655,360 491,520 0 to 38% 82 to 95% L1 L2" in lines
    said = (
        "L2 (host memory), 623,360 tokens: holds rounds 1 to 3 and starts to evict in round 4 "
        "(655,360 tokens)"
    )
    assert said in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100


def test_a_tier_that_is_not_known_is_named_with_what_to_give(
    ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(script=H800_POOL) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "note: L1 is not known: the GPU's memory is not known: " in out
    assert "shows an NVIDIA GPU: give --gpu-memory" in out
    assert "L3 (Mooncake pool), 1,907,456 tokens: never evicts in 10 rounds" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "capacity is about a launch"),
        (("--clients", "3"), "--mooncake-version is about a launch"),
        (("nothing.sh",), "'nothing.sh' does not exist"),
        (("--", "mooncake_master", "-logtostderr"), "starts no SGLang server"),
        (("--nodes-in-cluster", "0", "--", "sglang"), "--nodes-in-cluster"),
        (("--eviction-watermark", "95", "--", "sglang"), "--eviction-watermark"),
        (("--other-segments", "5", "--", "sglang"), "write 5b for 5 bytes, or 5gb for 5 GiB"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_in_either_form(
    words: tuple[str, ...], message: str, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(*words) == 64
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert ask("--json", *words) == 64
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    assert (found["status"], found["exit_code"]) == ("error", 64)
    assert message in found["reason"]


def test_a_command_line_is_a_launch_too(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    words = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64"
    assert ask("--gpu-memory", "80gb", "--request-length", "4096", "--", *words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("SGLang server (command line): Qwen/Qwen3-8B, 144.00 KiB per token")
    assert "conversations" in out
