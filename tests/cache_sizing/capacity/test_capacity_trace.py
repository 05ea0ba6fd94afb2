"""``capacity``, with a trace and without, as users and scripts meet it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from preflight.cli.main import run
from tests.builders.capacity_launches import HICACHE, STORED
from tests.builders.hosts import GIB, Host
from tests.cache_sizing.capacity.test_capacity_published import H800_L2, H800_POOL
from tests.paths import ROOT
from tests.valid import valid

Patch = pytest.MonkeyPatch
Out = pytest.CaptureFixture[str]

SCHEMA = json.loads((ROOT / "preflight/report/schemas/capacity-v1.schema.json").read_text())
QWEN = STORED.format(model="Qwen/Qwen3-8B", tp=1, size=60, segment="80gb")
# Three conversations in turn, three questions each, blocks of 512 tokens.
TURNS = [
    {"timestamp": 1000 * (3 * turn + talk), "input_length": 1024 * (turn + 1), "output_length": 1,
     "hash_ids": [100 * talk + at for at in range(2 * turn + 2)]}
    for turn in range(3) for talk in range(3)
]  # fmt: skip

VERSIONS = ("--mooncake-version", "0.3.14", "--sglang-version", "0.5.23")
Ask = Callable[..., int]


@pytest.fixture
def capacity(tmp_path: Path, monkeypatch: Patch) -> Ask:
    """Run ``capacity`` on a large host, about a script where one is given."""
    Host(memory_bytes=2048 * GIB).write(tmp_path / "host")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(turn)}\n" for turn in TURNS))

    def call(*words: str, script: str | None = None) -> int:
        if script is not None:
            (tmp_path / "run.sh").write_text(f"{script}\n")
            words = (*words, "run.sh")
        # Without a launch there is nothing that they could be versions of.
        versions = VERSIONS if words and words[-1:] != ("--json",) else ()
        return run(["capacity", "--root", str(tmp_path / "host"), *versions, *words])

    return call


@pytest.fixture
def ask(capacity: Ask) -> Ask:
    def call(*words: str, script: str = QWEN) -> int:
        return capacity("--trace", "t.jsonl", *words, script=script)

    return call


def answer(ask: Ask, capsys: Out, *words: str, **named: str) -> Any:
    code = ask("--json", *words, **named)
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    assert found["exit_code"] == code
    return found["answer"]["trace"]


def test_each_tier_says_what_it_answers(ask: Ask, capsys: Out) -> None:
    assert ask("--gpu-memory", "80gb", "--prefill-tokens-per-second", "1000") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "t.jsonl (Mooncake): 9 requests in 8 s, 18,432 tokens of input; 36 blocks of 512" in out
    # Two blocks of the first question, then four: three conversations.
    assert "L1 50.0% 9,216 0 L2 0.0% 0 0 L3 0.0% 0 0 all 50.0% 9,216 saved 9" in out
    assert "none 50.0% spent 9" in out
    assert "L1 to L2: 1.27 GiB" in out
    assert "ceiling: 50.0% of all accesses" in out
    assert "pages of 64: what two prompts share is known to whole blocks" in out


def test_small_tiers_hand_down(ask: Ask, capsys: Out) -> None:
    """L1 holds 8 blocks: all first questions, then less; what it evicts is found again in L2."""
    script = f"{HICACHE.format(model='Qwen/Qwen3-8B', tp=1)} --max-total-tokens 4096"
    found = answer(ask, capsys, "--gpu-memory", "80gb", script=f"{script} --hicache-ratio 4")
    (server,) = found["servers"]
    assert server["least"] == server["most"]
    tiers = {tier["name"]: tier for tier in server["least"]["tiers"]}
    # The second questions of the first two find 2 blocks each in L1; that of the third 2 in L2,
    # and the third questions 4 each.
    assert (tiers["L1"]["rate"], tiers["L2"]["rate"]) == (4 / 36, 14 / 36)
    assert (tiers["L1"]["saved_tokens"], tiers["L2"]["saved_tokens"]) == (4 * 512, 14 * 512)
    assert {"from": "L2", "to": "L1", "blocks": 14} in server["least"]["moved"]


def test_without_the_gpu_l1_stands_with_l2(ask: Ask, capsys: Out) -> None:
    found = answer(ask, capsys)
    (server,) = found["servers"]
    assert server["l1_with_l2"]
    assert "L1 is not known: what it answers is counted with L2" in server["notes"][0]
    assert ask() == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "L1 unknown unknown unknown L1 and L2 50.0% 9,216 0" in out


def test_the_curve_and_its_inverse(ask: Ask, capsys: Out) -> None:
    words = ("--gpu-memory", "80gb", "--curve", "--hit-rate")
    assert ask(*words, "40%") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "64,000 8.79 GiB 50.0% 50.0%" in out
    assert "40.0%: one cache of" in out
    assert ask(*words, "60%") == 0
    assert "60.0%: no cache answers so much of this trace" in capsys.readouterr().out
    assert answer(ask, capsys, *words, "0.6")["wanted"] == {"rate": 0.6, "tokens": None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hit-rate", "much"), "'much' is not a part of all: write 60% or 0.6"),
        (("--hit-rate", "160%"), "'160%' is not a part of all"),
        (("--routing", "sticky"), ""),
        (("--trace", "none.jsonl"), "--trace none.jsonl: No such file"),
    ],
)
def test_what_cannot_be_meant(ask: Ask, capsys: Out, words: tuple[str, ...], said: str) -> None:
    code = ask("--gpu-memory", "80gb", *words)
    out, err = capsys.readouterr()
    assert code == (64 if said else 0)
    assert said in err
    assert "Traceback" not in out + err


ROUTED = "python3 -m sglang_router.launch_router --worker-urls http://a:1 http://b:1 {flags}"


@pytest.mark.parametrize(
    ("flags", "routing", "note"),
    [
        ("", "cache-aware", "cache-aware (router"),
        ("--policy round_robin", "round-robin", "round-robin (--policy at run.sh:"),
        ("--policy random", "random", "random (--policy at"),
        ("--policy power_of_two", "random", "and power_of_two is random"),
        ("--policy prefix_hash", "cache-aware", "policy prefix_hash: it is taken for cache_aware"),
        ("--policy=cache_aware --cache-threshold 0.5", "cache-aware", "--balance-abs-threshold"),
        ("--policy random --prefill-policy round_robin", "round-robin", "never acts"),
    ],
)
def test_the_launch_s_router_says_who_gets_a_request(
    ask: Ask, capsys: Out, flags: str, routing: str, note: str
) -> None:
    """Two servers that are alike, behind it: one stream of requests, and one pool."""
    script = f"{QWEN} &\n{QWEN} --port 30001 &\n{ROUTED.format(flags=flags)}"
    found = answer(ask, capsys, "--gpu-memory", "80gb", script=script)
    first, second = found["servers"]
    assert (first["routing"], first["caches"]) == (routing, 2)
    assert any(note in each for each in first["notes"])
    assert "the router spreads requests over it and" in second["unknown"]


def test_servers_with_a_router_in_front(ask: Ask, capsys: Out) -> None:
    script = QWEN.replace("sglang.launch_server", "sglang_router.launch_server")
    script += " --dp-size 2 --router-policy round_robin --router-cache-threshold 0.2"
    (server,) = answer(ask, capsys, "--gpu-memory", "80gb", script=script)["servers"]
    assert (server["routing"], server["caches"]) == ("round-robin", 2)


@pytest.mark.parametrize("given", ["1.5", "nan", "half"])
def test_a_threshold_that_cannot_be(ask: Ask, capsys: Out, given: str) -> None:
    script = f"{QWEN} &\n{ROUTED.format(flags=f'--cache-threshold {given}')}"
    assert ask("--gpu-memory", "80gb", script=script) == 64
    assert f"--cache-threshold {given} at run.sh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "evicts 0.05 of its objects at a time; what was asked for stays 10 s"),
        (
            "--eviction_ratio=0.2 --default_kv_lease_ttl 5s",
            "evicts 0.2 of its objects at a time; what was asked for stays 5 s",
        ),
        ("--default_kv_lease_ttl=500", "stays 0.5 s (its lease)"),
    ],
)
def test_the_master_s_flags_decide_what_the_pool_evicts(
    ask: Ask, capsys: Out, flags: str, said: str
) -> None:
    script = f"mooncake_master {flags} &\n{QWEN}"
    (server,) = answer(ask, capsys, "--gpu-memory", "80gb", script=script)["servers"]
    assert said in server["notes"][-1]
    assert "pins none" in server["notes"][-1]


@pytest.mark.parametrize(
    "flag", ["eviction_ratio=2", "default_kv_lease_ttl=soon", "eviction_high_watermark_ratio=95"]
)
def test_a_master_that_does_not_start(ask: Ask, capsys: Out, flag: str) -> None:
    assert ask("--gpu-memory", "80gb", script=f"mooncake_master --{flag} &\n{QWEN}") == 64
    assert f"mooncake_master --{flag} at run.sh:1" in capsys.readouterr().err


PICTURES = ("--format", "html", "--output", "o.html", "--format", "svg", "--output", "o.svg")


def test_the_pictures_show_what_the_text_says(
    ask: Ask, capsys: Out, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--gpu-memory", "80gb", "--curve", "--format", "text", *PICTURES)
    assert ask(*words, "--ascii") == 0
    out = capsys.readouterr().out
    plot = out[out.index("Hits of one cache") : out.index("\n\nas  ")]
    assert max(map(len, plot.splitlines())) <= 80
    assert out.isascii()
    assert " 60 % |" in plot
    # What 64,000 tokens hold answers all that any cache does: half of all, on the 50 % line.
    drawn_rows = [row for row in plot.splitlines() if "|..." in row]
    assert len(drawn_rows) == 1
    page = (tmp_path / "o.html").read_text()
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    cells = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in rows]
    table = out[out.index("tokens in one cache  ") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) == 4
    for line in table:
        assert " ".join(line.split()) in cells
    assert "L1 50.0% 9,216 0" in cells
    drawn = ElementTree.parse(tmp_path / "o.svg").getroot()
    assert "ceiling 50.0%" in drawn.attrib["aria-label"]
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0 %", "60 %", "1", "2", "3", "64K", "tokens in one cache"} <= set(texts)
    # All three are larger than any size that matters: one above the other, not one over the other.
    marks = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    places = [(float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in marks]
    assert len(places) == 3
    radius = float(marks[0].attrib["r"])
    assert all(math.dist(a, b) >= 2 * radius for a, b in combinations(places, 2))


def test_marks_at_the_upper_edge_stay_in_the_picture(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nearly all hits: there is no room above the one that stands there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"{QWEN}\n")
    turn = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(turn)}\n" * 200)
    words = ["capacity", "--root", "demo:h800", "--gpu-memory", "80gb", "--trace", "t.jsonl"]
    assert run([*words, *PICTURES, "run.sh"]) == 0
    drawn = ElementTree.parse(tmp_path / "o.svg").getroot()
    marks = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(marks) == 3
    assert all(float(mark.attrib["cy"]) >= float(mark.attrib["r"]) for mark in marks)
    places = [(float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in marks]
    assert all(math.dist(a, b) >= 14 for a, b in combinations(places, 2))


def test_tiers_of_one_size_are_one_mark_with_all_their_names(ask: Ask, capsys: Out) -> None:
    script = f"{HICACHE.format(model='Qwen/Qwen3-8B', tp=1)} --max-total-tokens 4096"
    assert ask("--curve", "--gpu-memory", "80gb", script=f"{script} --hicache-ratio 1.02") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 as large as L1 and L2" in out
    assert "2 as large as" not in out  # no letter in the legend that the plot has not
    assert ask("--curve", "--gpu-memory", "80gb", script=f"{script} --hicache-ratio 4") == 0
    assert "1 as large as L1, 2 as large as L2" in " ".join(capsys.readouterr().out.split())


def test_a_kind_of_traffic_stands_in_for_a_trace(
    tmp_path: Path, monkeypatch: Patch, capsys: Out
) -> None:
    monkeypatch.setattr("preflight.cli.capacity.KIND_REQUESTS", 100)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"{QWEN}\n")
    words = ["capacity", "--root", "demo:h800", "--gpu-memory", "80gb", "run.sh", "--workload"]
    assert run([*words, "rag"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "rag (generated): 100 requests" in out
    assert "note: made, not recorded: single questions" in out
    assert run([*words, "rag", "--trace", "t.jsonl"]) == 64
    assert "stands in for a trace: give one of both" in capsys.readouterr().err


def test_the_curve_is_of_a_trace(capsys: Out) -> None:
    assert run(["capacity", "--curve", "run.sh"]) == 64
    assert "--curve is about a trace: give --trace FILE" in capsys.readouterr().err


# Without a trace ---------------------------------------------------------------------------------


def test_the_text_says_what_holds_and_when_it_no_longer_does(capacity: Ask, capsys: Out) -> None:
    assert capacity("--gpu-memory", "80gb", script=H800_L2) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "L2 host memory 223.53 GiB 623,360 30" in lines
    assert "3 491,520 327,680 15 to 34% 100% L1" in lines
    assert "4 655,360 491,520 2 to 9% 92% L1 L2" in lines
    said = "L2 (host memory), 623,360 tokens: holds rounds 1 to 3 and starts to evict in round 4 ("
    assert f"{said}655,360 tokens)" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100


def test_a_tier_that_is_not_known_is_named_with_what_to_give(capacity: Ask, capsys: Out) -> None:
    assert capacity(script=H800_POOL) == 3
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
    words: tuple[str, ...], message: str, capacity: Ask, capsys: Out
) -> None:
    assert capacity(*words) == 64
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert capacity("--json", *words) == 64
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    assert (found["status"], found["exit_code"]) == ("error", 64)
    assert message in found["reason"]


def test_a_command_line_is_a_launch_too(capacity: Ask, capsys: Out) -> None:
    words = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64"
    assert capacity("--gpu-memory", "80gb", "--request-length", "4096", "--", *words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("SGLang server (command line): Qwen/Qwen3-8B, 144.00 KiB per token")
    assert "conversations" in out
