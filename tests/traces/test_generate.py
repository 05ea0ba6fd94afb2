"""Traces that are made, and what is said and written of any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.capacity.rounds import rounds_requests
from preflight.capacity.workload import MultiTurnWorkload
from preflight.cli.capacity import KINDS
from preflight.cli.main import run
from preflight.traces.describe import mooncake_lines
from preflight.traces.formats import Request, Trace, open_trace
from preflight.traces.generate import PROFILES, profile_trace
from tests.paths import ROOT
from tests.valid import valid

PAGE = 64


def made(kind: str, count: int = 300, seed: int = 0) -> list[Request]:
    return list(profile_trace(kind, PAGE, count, seed).requests)


def test_the_command_has_every_kind() -> None:
    assert set(KINDS) == set(PROFILES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_made_alike_from_one_seed(kind: str) -> None:
    first, again, other = made(kind), made(kind), made(kind, seed=1)
    assert first == again != other
    times = [each.seconds for each in first]
    assert times == sorted(times, key=lambda each: each or 0)
    for each in first:
        assert len(each.blocks) == each.input_tokens // PAGE
    # All begin with one system prompt.
    shared = PROFILES[kind].shared // PAGE
    assert len({tuple(each.blocks[:shared]) for each in first}) == 1


@pytest.mark.parametrize("kind", ["chat", "agent", "documents"])
def test_a_conversation_goes_on_where_it_was(kind: str) -> None:
    before: dict[int | None, Request] = {}
    for each in made(kind):
        if each.session in before:
            last = before[each.session]
            assert each.blocks[: len(last.blocks)] == last.blocks
            assert each.input_tokens > last.input_tokens + last.output_tokens
        before[each.session] = each
    assert len(before) < 300


def written(out: str, path: Path) -> str:
    path.write_text(out)
    return str(path)


def test_what_is_converted_hits_alike_and_holds_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "the king of France is bald "
    records = [{"conversations": [{"from": "human", "value": secret * 40}]}] * 2
    source = written("\n".join(map(json.dumps, records)), tmp_path / "talk.jsonl")

    def convert(*words: str) -> str:
        assert run(["trace", "convert", *words, source]) == 0
        out, err = capsys.readouterr()
        assert "no tokenizer: 4 letters are taken for a token" in err
        return out

    out = convert("--salt", "x")
    assert "king" not in out
    assert out == convert("--salt", "x") != convert()
    before = list(open_trace(source, PAGE).requests)
    after = list(open_trace(written(out, tmp_path / "c.jsonl"), 1).requests)
    assert [len(each.blocks) for each in after] == [len(each.blocks) for each in before]
    assert after[0].blocks == after[1].blocks
    assert [each.input_tokens for each in after] == [each.input_tokens for each in before]


def test_a_trace_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = MultiTurnWorkload(4, 5, 640, 640, 1, "test", barrier=True)
    made_trace = Trace("rounds", "made", PAGE, rounds_requests(workload, PAGE, 0), ())
    lines = [f"{line}\n" for line in mooncake_lines(made_trace, b"")]
    source = written("".join(lines), tmp_path / "rounds.jsonl")
    assert run(["trace", "describe", source]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "rounds.jsonl (Mooncake): 20 requests over 19 s, 1.05 a second" in out
    assert "4 conversations, 5.0 requests each" in out
    assert run(["trace", "describe", "--json", source]) == 0
    whole = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "preflight/schemas/trace-v1.schema.json").read_text())
    valid(whole, schema)
    found = whole["answer"]
    assert found["requests"] == sum(each["requests"] for each in found["windows"]) == 20
    assert sum(each["new"] for each in found["windows"]) == found["distinct"]
    # What is left of parts of a size is a part too: the trace is shown to its end.
    (tmp_path / "odd.jsonl").write_text(Path(source).read_text() * 4)
    lines = (tmp_path / "odd.jsonl").read_text().splitlines(keepends=True)[:67]
    (tmp_path / "odd.jsonl").write_text("".join(sorted(lines)))
    assert run(["trace", "describe", "--json", str(tmp_path / "odd.jsonl")]) == 0
    windows = json.loads(capsys.readouterr().out)["answer"]["windows"]
    assert sum(each["requests"] for each in windows) == 67
    assert windows[-1]["requests"] < windows[0]["requests"]
    assert run(["trace", "describe", "--json", "none.jsonl"]) == 64
    valid(json.loads(capsys.readouterr().out), schema)
