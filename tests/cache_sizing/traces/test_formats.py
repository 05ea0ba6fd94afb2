"""Traces as they are recorded, and what is said of bad lines; traces that are made."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight.base.usage_error import UsageError
from preflight.base.within import GIVEN_SECONDS
from preflight.cache_sizing.capacity.rounds import rounds_requests
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload
from preflight.cache_sizing.traces.describe import mooncake_lines, profile_trace, profiles
from preflight.cache_sizing.traces.formats import Request, Trace, open_trace
from preflight.cli.capacity import KINDS
from preflight.cli.main import run
from tests.paths import ROOT
from tests.valid import valid

MOONCAKE = '{"timestamp": 1500, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}'
QWEN = (
    '{"chat_id": 3, "parent_chat_id": %d, "timestamp": 2.5, "input_length": 33, '
    '"output_length": 4, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}'
)
SIMULATOR = '{"block_size": 64, "hash_ids": ["x", "y"], "input_length": 128}'

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(*lines: str, name: str = "t.jsonl") -> str:
        path = tmp_path / name
        content = "".join(f"{line}\n" for line in lines).encode()
        packer = {".gz": gzip, ".xz": lzma}.get(path.suffix)
        path.write_bytes(packer.compress(content) if packer else content)
        return str(path)

    return written


def read(name: str, page: int = 64, block: int | None = None) -> tuple[Trace, list[Request]]:
    trace = open_trace(name, page, block)
    return trace, list(trace.requests)


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        (MOONCAKE, "Mooncake", (512, 1000, 5, 1.5, 2)),
        (QWEN % -1, "Qwen-Bailian", (16, 33, 4, 2.5, 3)),
        (SIMULATOR, "Mooncake", (64, 128, 0, None, 2)),
        ('{"input_length": 100, "hash_ids": [1, 2, 3, 4]}', "Mooncake", (32, 100, 0, None, 4)),
    ],
)
def test_each_format_is_told_by_its_fields(
    write: Write, line: str, name: str, expected: tuple[float | None, ...]
) -> None:
    """Tokens of a block, of the question and of the answer, the time, and how many blocks."""
    trace, (one,) = read(write(line))
    tokens = (trace.block_tokens, one.input_tokens, one.output_tokens)
    assert (trace.format, (*tokens, one.seconds, len(one.blocks))) == (name, expected)


TOKENS = list(range(150))
RECEIVED: dict[str, Any] = {"timestamp": "2026-01-31T10:00:00", "event": "request.received"}
RECEIVED |= {"obj": {"input_ids": TOKENS, "text": None}}
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": None,
}
STORED |= {"token_ids": list(range(64)), "block_size": 32}


def line(record: Mapping[str, object]) -> str:
    return json.dumps(record)


@pytest.mark.parametrize(
    ("lines", "name", "blocks"),
    [
        pytest.param([line({"token_ids": TOKENS})] * 2, "token ids", [2, 2], id="tokens"),
        pytest.param(
            [line(RECEIVED), line({**RECEIVED, "event": "request.finished"})],
            "SGLang's request log",
            [2],
            id="SGLang, JSON",
        ),
        pytest.param(
            [
                "INFO: The server is fired up",
                f"Receive: obj=GenerateReqInput(rid='1', text='', input_ids={TOKENS})",
                f"Finish: obj=GenerateReqInput(rid='1', text='', input_ids={TOKENS}), out=...",
                f"Received request cmpl-1: prompt: 'a', prompt_token_ids: {TOKENS}, lora",
            ],
            "token ids",
            [2, 2],
            id="logs as text",
        ),
        pytest.param(
            [
                line(STORED),
                line({"type": "BlockRemoved", "block_hashes": [12]}),
                line({**STORED, "block_hashes": [13], "parent_block_hash": 11}),
            ],
            "KV events",
            [2, 2],
            id="KV events",
        ),
        pytest.param(
            [
                '[{"id": 1, "conversations": [{"from": "human", "value": "%s"},' % ("x" * 600),
                '  {"from": "gpt", "value": "yes"}, {"from": "human", "value": "so"},',
                '  {"from": "gpt", "value": "no"}]}, {"conversations": []}]',
            ],
            "conversations",
            [2, 2],
            id="ShareGPT",
        ),
        pytest.param(
            [line({"messages": [{"role": "user", "content": "x" * 600}]})],
            "conversations",
            [2],
            id="messages",
        ),
    ],
)
def test_tokens_and_texts_become_pages(
    write: Write, lines: list[str], name: str, blocks: list[int]
) -> None:
    trace, requests = read(write(*lines))
    assert trace.format == name
    assert [len(each.blocks) for each in requests] == blocks
    # All of them begin alike.
    assert len({each.blocks[0] for each in requests}) == 1


def test_one_request_by_every_way(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, on standard input, with empty lines, and as a table of commas."""
    heads = "timestamp,input_length,output_length,hash_ids"
    names = [write(MOONCAKE, MOONCAKE, name=name) for name in ("t.jsonl", "t.jsonl.gz", "t.xz")]
    names += [write(heads, *['1500,1000,5,"[7, 8]"'] * 2, name="t.csv"), "-"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{MOONCAKE}\n\n{MOONCAKE}\n"))
    first, *others = (read(name)[1] for name in names)
    assert len(first) == 2
    assert all(each == first for each in others)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "must be an object"),
        ('{"input_length": -3, "hash_ids": [1]}', '"input_length": -3: must be a whole number'),
        ('{"input_length": 512, "hash_ids": 4}', '"hash_ids": 4: must be a list'),
        ('{"input_length": 512, "hash_ids": [1.5]}', '"hash_ids": 1.5: must be whole numbers'),
        (
            '{"input_length": 5000, "hash_ids": [1]}',
            '"hash_ids" are 1: "input_length" 5000 is 10 blocks of 512 tokens',
        ),
        (
            '{"input_length": 512, "hash_ids": [1], "timestamp": "now"}',
            "\"timestamp\": 'now': must be a number of milliseconds",
        ),
        ("{}", '"input_length": 0: must be a whole number of tokens, 1 to'),
        (
            '{"input_length": 512, "hash_ids": [1], "timestamp": NaN}',
            '"timestamp": nan: must be a number',
        ),
    ],
)
def test_a_bad_line_is_named_with_its_value_and_the_rule(
    write: Write, line: str, said: str
) -> None:
    good = [MOONCAKE] * 250
    with pytest.raises(UsageError) as error:
        read(write(*good, line))
    assert "t.jsonl, line 251: " in str(error.value)
    assert said in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"", "t.jsonl", "holds no request"),
        (b'{"a": 1}\n', "t.jsonl", "line 1: has a: of no known format (Qwen-Bailian: hash_ids"),
        (b"\xff\xfe{}\n", "t.jsonl", "after line 0: 'utf-8' codec"),
        (b"not packed", "t.jsonl.gz", "after line 0: Not a gzipped file"),
        (b"not packed", "t.jsonl.xz", "after line 0: Input format not supported"),
        (gzip.compress(MOONCAKE.encode(), mtime=0)[:-20], "t.jsonl.gz", "after line 0: Compressed"),
        (
            b"input_length,hash_ids\n1,2,3\n",
            "t.csv",
            "line 2: '1,2,3': not JSON (3 cells under 2 heads)",
        ),
        (b'[{"input_length": 1,\n', "t.json", "line 1: '{\"input_length\": 1,': not JSON"),
        (b"[1]\n", "t.json", "line 1: '1]': must be an object"),
        (b"INFO: ready\n", "t.log", "holds no request"),
        (None, "nothing.jsonl", "nothing.jsonl: No such file or directory"),
        (b"packed", "t.jsonl.zst", "give --trace - and zstd -dc "),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes | None, name: str, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        read(str(tmp_path / name))
    assert f"--trace {tmp_path / name}" in str(error.value)
    assert said in str(error.value)


def test_a_pipe_to_which_nobody_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    limit = GIVEN_SECONDS.set(0.05)
    try:
        with pytest.raises(UsageError, match=r"pipe: no answer in 0\.05 s"):
            open_trace(str(tmp_path / "pipe"), 64)
    finally:
        GIVEN_SECONDS.reset(limit)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"token_ids": []}, '"token_ids": []: must be the whole numbers of one prompt'),
        ({"token_ids": [[1]]}, '"token_ids": [1]: must be the whole numbers'),
        ({**RECEIVED, "obj": {}}, "log with --log-requests-level 3"),
        ({**RECEIVED, "obj": 3}, '"obj": 3: must be an object'),
        ({**RECEIVED, "timestamp": 7}, '"timestamp": 7: must be a time'),
        ({**STORED, "block_size": None}, '"block_size": None: must be 16'),
        ({**STORED, "block_hashes": 4}, '"block_hashes": 4: must be a list'),
        ({**STORED, "parent_block_hash": [1]}, '"parent_block_hash": [1]: must be whole numbers'),
        ({**STORED, "parent_block_hash": 12}, '"block_hashes": 12: comes before itself'),
        ({"conversations": [4]}, '"conversations": 4: must be turns'),
    ],
)
def test_a_bad_record_of_each_format(write: Write, record: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(write(line(record)))
    assert said in str(error.value)


PAGE = 64


def made(kind: str, count: int = 300, seed: int = 0) -> list[Request]:
    return list(profile_trace(kind, PAGE, count, seed).requests)


def test_the_command_has_every_kind() -> None:
    assert set(KINDS) == set(profiles())


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_made_alike_from_one_seed(kind: str) -> None:
    first, again, other = made(kind), made(kind), made(kind, seed=1)
    assert first == again != other
    times = [each.seconds for each in first]
    assert times == sorted(times, key=lambda each: each or 0)
    for each in first:
        assert len(each.blocks) == each.input_tokens // PAGE
    # All begin with one system prompt.
    shared = profiles()[kind].shared // PAGE
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
    schema = json.loads((ROOT / "preflight/report/schemas/trace-v1.schema.json").read_text())
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
