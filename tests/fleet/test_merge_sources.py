"""Texts of files, folders and standard input: each split where one report ends."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.reports import sources as merge_sources
from preflight.fleet.reports.rows import Trouble, Unusable
from preflight.fleet.reports.sources import Text, texts

ONE, TWO = {"a": {"b": 1}, "c": [1, 2]}, {"a": 2}


def found(*paths: object) -> list[tuple[int, object]]:
    """(line, object) of each text; (line, trouble) of what is none."""
    return [
        (each.line, each.trouble) if isinstance(each, Unusable) else (each.line, _read(each))
        for each in texts([str(path) for path in paths])
    ]


def _read(text: Text) -> object:
    try:
        return json.loads(text.content)
    except ValueError:
        return text.content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(ONE), [(0, ONE)]),
        (json.dumps(ONE) + "\n\n", [(0, ONE)]),
        (json.dumps(ONE, indent=2), [(0, ONE)]),
        (json.dumps([ONE, TWO], indent=1), [(0, [ONE, TWO])]),
        (f"{json.dumps(ONE)}\n{json.dumps(TWO)}\n", [(1, ONE), (2, TWO)]),
        (f"{json.dumps(ONE)}\r\n\r\n{json.dumps(TWO)}", [(1, ONE), (3, TWO)]),
        (f"{json.dumps(ONE, indent=2)}\n{json.dumps(TWO, indent=2)}", [(1, ONE), (10, TWO)]),
        ('{"a": 2,\n "b": 1}', [(0, {"a": 2, "b": 1})]),
        ('{"a": 2,\n{"a": 2}', [(1, b'{"a": 2,'), (2, TWO)]),
        ('{\n  "a": 1\n{\n  "a": 2\n}', [(1, b'{\n  "a": 1'), (3, TWO)]),
        ('{\n  "a": 1', [(0, b'{\n  "a": 1')]),
        (f"a log\n{json.dumps(TWO)}\n", [(1, b"a log"), (2, TWO)]),
        ("", [(0, Trouble.EMPTY)]),
        ("  \n\t\n", [(0, Trouble.EMPTY)]),
    ],
)
def test_a_file_is_split_where_its_objects_end(
    content: str, expected: list[tuple[int, object]], tmp_path: Path
) -> None:
    place = tmp_path / "file"
    place.write_bytes(content.encode())
    assert found(place) == expected
    packed = tmp_path / "file.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert found(packed) == expected


def test_a_folder_is_its_files_in_order_at_any_depth(tmp_path: Path) -> None:
    for name, number in (("b.json", 2), ("a.json", 1), ("sub/c.json", 3), (".hidden", 4)):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"a": number}))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dead").symlink_to("nowhere")
    assert found(tmp_path) == [
        (0, {"a": 1}),
        (0, {"a": 2}),
        (0, Trouble.UNREADABLE),
        (0, {"a": 3}),
    ]


def test_what_cannot_be_opened_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    good = tmp_path / "good.json"
    good.write_text("{}")
    missing = tmp_path / "missing.json"
    assert found(missing, tmp_path / "empty", good, "nul\0name") == [
        (0, Trouble.UNREADABLE),
        (0, Trouble.EMPTY),
        (0, {}),
        (0, Trouble.UNREADABLE),
    ]


def test_gzip_that_ends_early_gives_what_it_holds_and_says_so(tmp_path: Path) -> None:
    lines = "".join(
        f"{json.dumps({'a': number, 'b': os.urandom(30).hex()})}\n" for number in range(999)
    )
    packed = gzip.compress(lines.encode())
    place = tmp_path / "cut.gz"
    place.write_bytes(packed[: len(packed) // 2])
    *read, last = found(place)
    assert last == (0, Trouble.TRUNCATED)
    whole = [each for _, each in read if isinstance(each, dict)]
    assert [each["a"] for each in whole] == list(range(len(whole)))
    assert len(whole) > 300
    place.write_bytes(b"\x1f\x8bno gzip at all")
    assert found(place) == [(0, Trouble.UNREADABLE)]


def test_gzip_members_one_after_another_are_one_text(tmp_path: Path) -> None:
    place = tmp_path / "two.gz"
    place.write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n') + b"\0\0")
    assert found(place) == [(1, {"a": 1}), (2, {"a": 2})]


def test_standard_input_is_one_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\n{"a": 2}\n')))
    assert found("-") == [(1, {"a": 1}), (2, {"a": 2})]


def test_a_line_larger_than_any_report_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are read; it is never held in memory as a whole."""
    monkeypatch.setattr(merge_sources, "LARGEST_REPORT_BYTES", 1000)
    monkeypatch.setattr(merge_sources, "_CHUNK_BYTES", 64)
    place = tmp_path / "file"
    endless = "{\n" + " 1\n" * 900 + "}\n"
    place.write_text(f'{{"a": 1}}\n{"x" * 5000}\n{{"a": 2}}\n{endless}')
    assert found(place)[:3] == [(1, {"a": 1}), (2, Trouble.TOO_LARGE), (3, {"a": 2})]
    assert (4, Trouble.TOO_LARGE) in found(place)


def test_a_device_that_never_ends_is_named_and_not_read() -> None:
    (zeros,) = texts(["/dev/zero"])
    assert isinstance(zeros, Unusable)
    assert zeros.trouble is Trouble.UNREADABLE
    (nothing,) = texts([os.devnull])
    assert isinstance(nothing, Unusable)
    assert nothing.trouble is Trouble.EMPTY


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)), max_size=9),
    st.integers(1, 200),
)
def test_wherever_a_stream_is_cut_into_chunks_it_holds_the_same(
    objects: list[dict[str, object]], chunk_bytes: int
) -> None:
    """Law: the lines of a stream do not depend on how much of it is read at a time."""
    content = "".join(f"{json.dumps(each)}\n" for each in objects).encode()
    chunks = [content[at : at + chunk_bytes] for at in range(0, len(content), chunk_bytes)]
    lines = [line for _, line in merge_sources._lines(chunks)]
    assert [json.loads(line or b"") for line in lines] == objects
