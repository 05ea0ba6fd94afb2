"""``fit --goal hits``: the sizes that answer the most of a recorded trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.paths import ROOT
from tests.pictures.markup import Markup
from tests.valid import valid

SCRIPT = """\
export MOONCAKE_MASTER=127.0.0.1:1 MOONCAKE_PROTOCOL=tcp MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64 \\
  --max-total-tokens 4096 --enable-hierarchical-cache --hicache-size 2 \\
  --hicache-storage-backend mooncake
"""
# On 24 GiB: what is left for the cache is some 90,000 tokens of 144 KiB.
HOST = ("--memory", "24gb", "--gpus", "1xH800")


def cycle(blocks: int) -> str:
    """Prompts of 8 blocks of 512 tokens, one after the other, and all of them once more."""
    prompts = [[1000 * number + at for at in range(8)] for number in range(blocks // 8)]
    lines = [{"input_length": 4096, "hash_ids": prompt} for prompt in prompts * 3]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.mark.slow
def test_the_share_with_the_most_hits_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace that only all of the memory in one tier holds: halves answer nothing of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "t.jsonl").write_text(cycle(120))
    words = ["fit", *HOST, "--json", "--keep", "1gb", "--goal", "hits", "--trace", "t.jsonl"]
    words += ["--format", "html", "--output", "o.html", "--format", "svg", "--output", "o.svg"]
    assert run([*words, "run.sh"]) in (0, 1, 3)
    found = json.loads(capsys.readouterr().out)
    valid(found, json.loads((ROOT / "preflight/schemas/fit-v1.schema.json").read_text()))
    found = found["answer"]
    hits = found["hits"]
    assert next(one["about"] for one in hits["tried"]) == "best"
    assert {one["about"] for one in hits["tried"]} >= {"now", "l2", "pool"}
    assert all(each["least"] <= each["most"] for one in hits["tried"] for each in one["servers"])
    assert hits["ceiling"] == pytest.approx(2 / 3)
    rates = {one["about"]: one["servers"][0]["least"] for one in hits["tried"]}
    assert list(rates.values()) == sorted(rates.values(), reverse=True)
    assert rates["best"] == pytest.approx(2 / 3)
    assert rates["balanced"] < 0.5
    assert f"--hicache-size {found['sizes']['l2']['value']} " in hits["tried"][0]["sizes"]
    assert [one["tokens"] for one in hits["next_gib"] if one["size"] == "l2"] in ([0], [])
    # The curve has what fits, and what the launch has now; the page says the same numbers.
    drawn = (tmp_path / "o.svg").read_text()
    assert "ceiling 66.7%" in drawn
    assert "as large as L2 66.7%" in drawn
    assert "as large as now: L2 " in drawn
    page = (tmp_path / "o.html").read_text()
    assert "66.7%" in page
    assert "knee: one cache of" in page


@pytest.mark.slow
def test_requests_are_spread_as_the_launchs_router_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers that are alike answer one stream, once; with more of a prompt than a part of it
    known a request goes where it was before: half of each prompt is its own here."""
    monkeypatch.chdir(tmp_path)
    prompts = [[*range(4), *(100 * number + at for at in range(4))] for number in range(1, 40)]
    lines = [{"input_length": 4096, "hash_ids": prompt} for prompt in prompts * 2]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    # Nothing is fetched from the store, which both share.
    own = """--hicache-storage-backend-extra-config '{"prefetch_threshold": 99999}'"""
    server = f"{SCRIPT.rstrip()} {own}"
    second = server.replace("launch_server", "launch_server --port 30001")
    found = []
    for threshold in ("0.2", "0.8"):
        router = "python3 -m sglang_router.launch_router --policy cache_aware --cache-threshold"
        (tmp_path / "run.sh").write_text(f"{router} {threshold} &\n{server} &\n{second}")
        words = ["--memory", "60gb", "--gpus", "2xH800", "--json", "--keep", "1gb"]
        run(["fit", *words, "--goal", "hits", "--trace", "t.jsonl", "run.sh"])
        out = json.loads(capsys.readouterr().out)["answer"]
        assert all(len(one["servers"]) == 1 for one in out["hits"]["tried"])
        assert any("the router spreads requests over it" in note for note in out["hits"]["notes"])
        found.append(out["hits"]["tried"][0]["servers"][0]["least"])
    # 0.2: all go to one cache after the first; 0.8: the first of each prompt to either.
    assert found[0] > found[1]


@pytest.mark.slow
def test_the_page_has_the_table_and_both_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same run as the JSON: each tier of each division is a bar with its tokens."""
    file = tmp_path / "fit.html"
    words = "--model Qwen/Qwen3-8B --memory 128gb --gpus 1xA40 --clients 20 --rounds 4".split()
    words += ["--request-length", "2048", "--format", "html", "--output", str(file), "--json"]
    assert run(["fit", *words]) == 0
    found = json.loads(capsys.readouterr().out)["answer"]
    markup = Markup(file.read_text())
    assert markup.problems == []
    labels = {
        attributes.get("aria_label") or attributes.get("aria-label")
        for _, attributes in markup.elements
    }
    for one in found["hits"]["tried"]:
        for tier in one["tiers"] if one["about"] != "now" else ():
            assert f"{one['about']} {tier['name']}: {tier['tokens']:,} tokens" in labels
    assert any(str(label).startswith("host with the launch: ") for label in labels)
    assert found["sizes"]["segment"]["value"] in markup.text
    assert "what limits it, at --hicache-size" in markup.text


def test_a_curve_alone_is_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "--format", "svg", "run.sh"]) == 64
    assert "give --trace FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--goal", "hits"], "--goal hits goes with --trace FILE"),
        (["--goal", "l2", "--trace", "t.jsonl"], "a workload is for --goal best"),
        (["--trace", "t.jsonl", "--clients", "5"], "give the one or the other"),
    ],
)
def test_a_trace_goes_with_its_goal(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", *words, "run.sh"]) == 64
    assert said in capsys.readouterr().err
