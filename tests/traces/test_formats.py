"""Traces as they are recorded, and what is said of lines that cannot be meant."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.base.usage_error import UsageError
from preflight.traces.formats import Request, Trace, open_trace

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
        if path.suffix == ".gz":
            content = gzip.compress(content)
        elif path.suffix == ".xz":
            content = lzma.compress(content)
        path.write_bytes(content)
        return str(path)

    return written


def read(name: str, page: int = 64, block: int | None = None) -> tuple[Trace, list[Request]]:
    trace = open_trace(name, page, block)
    return trace, list(trace.requests)


@pytest.mark.parametrize(
    ("line", "name", "block", "tokens", "seconds", "blocks"),
    [
        (MOONCAKE, "Mooncake", 512, (1000, 5), 1.5, 2),
        (QWEN % -1, "Qwen-Bailian", 16, (33, 4), 2.5, 3),
        (SIMULATOR, "Mooncake", 64, (128, 0), None, 2),
        ('{"input_length": 100, "hash_ids": [1, 2, 3, 4]}', "Mooncake", 32, (100, 0), None, 4),
    ],
)
def test_each_format_is_told_by_its_fields(
    write: Write,
    line: str,
    name: str,
    block: int,
    tokens: tuple[int, int],
    seconds: float | None,
    blocks: int,
) -> None:
    trace, (request,) = read(write(line))
    assert (trace.format, trace.block_tokens) == (name, block)
    assert (request.input_tokens, request.output_tokens) == tokens
    assert (request.seconds, len(request.blocks)) == (seconds, blocks)


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.jsonl.xz"])
def test_packed_files(write: Write, name: str) -> None:
    assert len(read(write(MOONCAKE, MOONCAKE, name=name))[1]) == 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{MOONCAKE}\n\n{MOONCAKE}\n"))
    assert len(read("-")[1]) == 2


def test_a_table_of_commas(write: Write) -> None:
    heads = "timestamp,input_length,output_length,hash_ids"
    _, (request,) = read(write(heads, '1500,1000,5,"[7, 8]"', name="t.csv"))
    assert request == read(write(MOONCAKE))[1][0]


def test_a_block_is_named_with_all_before_it(write: Write) -> None:
    lines = [f'{{"input_length": 1024, "hash_ids": {ids}}}' for ids in ([1, 2], [1, 3], [9, 2])]
    first, second, third = (request.blocks for request in read(write(*lines))[1])
    assert first[0] == second[0]
    assert len({first[1], second[1], third[1]}) == 3


def test_turns_of_a_conversation_are_kept_together(write: Write) -> None:
    turns = ((3, -1), (4, 3), (5, 4), (6, -1))
    lines = [
        (QWEN % parent).replace('"chat_id": 3', f'"chat_id": {turn}') for turn, parent in turns
    ]
    assert [request.session for request in read(write(*lines))[1]] == [3, 3, 3, 6]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "must be an object"),
        ('{"input_length": -3, "hash_ids": [1]}', '"input_length": -3: must be a whole number'),
        ('{"input_length": "many", "hash_ids": [1]}', "\"input_length\": 'many': must be"),
        ('{"input_length": 512, "hash_ids": 4}', '"hash_ids": 4: must be a list'),
        ('{"input_length": 512, "hash_ids": [1.5]}', '"hash_ids": 1.5: must be whole numbers'),
        ('{"input_length": 512, "hash_ids": [null]}', '"hash_ids": None: must be whole numbers'),
        (
            '{"input_length": 5000, "hash_ids": [1]}',
            '"hash_ids" are 1: "input_length" 5000 is 10 blocks of 512 tokens',
        ),
        (
            '{"input_length": 512, "hash_ids": [1], "timestamp": "now"}',
            "\"timestamp\": 'now': must be a number of milliseconds",
        ),
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
        (gzip.compress(MOONCAKE.encode())[:-20], "t.jsonl.gz", "after line 0: Compressed file"),
        (b"a,b\n1,2,3\n", "t.csv", "line 2: '1,2,3': not JSON (3 cells under 2 heads)"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, name: str, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        read(str(tmp_path / name))
    assert f"--trace {tmp_path / name}" in str(error.value)
    assert said in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.jsonl: No such file or directory"):
        open_trace(str(tmp_path / "nothing.jsonl"), 64)
