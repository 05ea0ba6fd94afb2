"""A launch's arguments are read as the release that it starts reads them."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import pytest
import write_sglang_arguments as table
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.unknown import Unknown
from checks.releases.sglang import RELEASES, parse_version
from preflight.engines.programs import sglang_arguments
from preflight.engines.programs.sglang_argument_tables import (
    RefusedError,
    argument_table,
    releases_with,
)
from preflight.engines.programs.sglang_arguments import ParsedArguments, parse_sglang_arguments
from preflight.launches.source import Origin, Word
from tests.engines.sglang.argument_tables import RECORDED, VERSIONS, comparable, read
from tests.tables import each_row

NEWEST = VERSIONS[-1]


def words(*texts: str, unresolved: tuple[str, ...] = ()) -> list[Word]:
    """``unresolved``: variables; a text that holds one is a word that is not known."""
    origin = Origin("start.sh", 3)
    return [Word(t, origin, tuple(name for name in unresolved if name in t)) for t in texts]


def parse(*texts: str, version: str | None = None) -> ParsedArguments:
    return parse_sglang_arguments(words("--model-path", "m", *texts), version)


def _recorded() -> list[tuple[list[str], str, dict[str, Any]]]:
    """Every line, the releases that agree on it, and what their own parsers make of it."""
    return [
        (line, versions, result)
        for line, groups in json.loads(RECORDED.read_text())
        for versions, result in groups
    ]


@pytest.mark.slow
@each_row(("line", "versions", "result"), _recorded())
def test_as_the_real_parser(line: list[str], versions: str, result: dict[str, Any]) -> None:
    """Values, refusals and leftovers are those of each release's own argparse parser."""
    for version in versions.split():
        assert comparable(read(version, line)) == comparable(result), version


def test_many_flags_that_nobody_knows_take_no_time() -> None:
    """Each was compared with every known one for each of the others: 400 took 9 s."""
    flags = [f"--hicache-siz{n}" for n in range(400)]
    begin = time.process_time()
    parsed = parse(*flags)
    assert time.process_time() - begin < 2
    assert len(parsed.unrecognized) == 400


def test_every_release_is_recorded() -> None:
    """No line is without a release, and none of the releases without a table."""
    seen: dict[str, list[str]] = {}
    for line, versions, _ in _recorded():
        seen.setdefault(json.dumps(line), []).extend(versions.split())
    assert all(sorted(v) == sorted(VERSIONS) for v in seen.values())
    assert [argument_table(version).version for version in VERSIONS] == VERSIONS


def test_every_sized_release_has_its_own_arguments() -> None:
    """A release from which the sizing changes is not read with another one's arguments."""
    tables = {parse_version(version) for version in VERSIONS}
    assert {release.first for release in RELEASES} <= tables


# The defaults that memory follows from, by the release that changed them.
@each_row(
    ("name", "expected"),
    [
        ("hicache_ratio", {"0.5.2": 2.0, "0.5.17": 2.0, "0.5.18": None, "0.5.23": None}),
        ("hicache_size", {"0.5.2": 0, "0.5.23": 0}),
        ("hicache_mem_layout", {"0.5.13.post1": "layer_first", "0.5.14": "page_first"}),
        ("hicache_write_policy", {"0.5.2": "write_through", "0.5.23": "write_through"}),
        ("hicache_storage_prefetch_policy", {"0.5.11": "best_effort", "0.5.12": "timeout"}),
        ("page_size", {"0.5.2": None, "0.5.23": None}),
        ("mem_fraction_static", {"0.5.2": None, "0.5.23": None}),
        ("hicache_host_memory_fraction", {"0.5.20": None, "0.5.21": 0.8}),
        ("hicache_host_memory_mode", {"0.5.18": None, "0.5.19": "cache"}),
        ("tp_size", {"0.5.2": 1, "0.5.12": 1, "0.5.23": 1}),
    ],
)
def test_defaults_of_a_release(name: str, expected: dict[str, Any]) -> None:
    """What is not given has that release's default, and its origin names the release."""
    for version, value in expected.items():
        parsed = parse(version=version)
        assert parsed.value(name) == value, version
        assert not parsed.given(name)
        assert version in parsed.settings[name].origin


@each_row(
    ("asked", "taken", "exact"),
    [
        (None, NEWEST, False),  # not known which one runs
        ("0.5.23", "0.5.23", True),
        ("v0.5.9", "0.5.9", True),
        (" 0.5.5.post3 ", "0.5.5.post3", True),
        ("0.5.5post3", "0.5.5.post3", False),
        ("0.5.9.post1", "0.5.9", False),  # never published: the one before it
        ("0.5.24", "0.5.23", False),
        ("0.5.23rc1", "0.5.23", False),
        ("0.5.22.dev12+gabc", "0.5.22", False),
        ("0.4.6", "0.5.2", False),
        ("1.0.0", "0.5.23", False),
    ],
)
def test_which_release_is_taken(asked: str | None, taken: str, exact: bool) -> None:
    """The release itself, or the nearest known one before it, and whether it is that one."""
    parsed = parse(version=asked)
    assert (parsed.version, parsed.exact) == (taken, exact)


def test_what_is_no_version_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'latest' is not an SGLang version"):
        parse(version="latest")


@pytest.mark.parametrize(
    ("flag", "spans"),
    [
        ("--hicache-size", (("0.5.2", NEWEST),)),
        ("--hicache-host-memory-fraction", (("0.5.21", NEWEST),)),
        ("--enable-ep-moe", (("0.5.2", "0.5.4"),)),
        ("--hicache-sise", ()),
        ("--hicache-siz", ()),
    ],
)
def test_releases_that_have_a_flag(flag: str, spans: tuple[tuple[str, str], ...]) -> None:
    """Where an argument came and went, for the message about one that is not there."""
    assert releases_with(flag) == spans


@pytest.mark.parametrize("text", ["--hicache-size=$SIZE", "--hicache-size"])
def test_a_variable_that_is_not_set(text: str) -> None:
    """A value that is not known stays unknown, with the variable's name, and is refused nowhere."""
    rest = [] if "=" in text else ["$SIZE"]
    line = words("--model-path", "m", text, *rest, unresolved=("SIZE",))
    parsed = parse_sglang_arguments(line, "0.5.9")
    size = parsed.value("hicache_size")
    assert parsed.error is None
    assert isinstance(size, Unknown)
    assert "SIZE is not set" in size.reason
    assert parsed.settings["hicache_size"].origin == "--hicache-size at start.sh:3"
    # A choice that is not known may be any.
    line = words("--model-path", "m", "--hicache-mem-layout", "$SIZE", unresolved=("SIZE",))
    parsed = parse_sglang_arguments(line, "0.5.2")
    assert parsed.error is None
    assert isinstance(parsed.value("hicache_mem_layout"), Unknown)


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    parsed = parse("--json-model-override-args", "{}", "--model-loader-extra-config", "[" * 10**5)
    assert parsed.error is None  # a string to SGLang, read later
    parsed = parse("--cuda-graph-config", "[" * 10**5)
    assert parsed.error is not None


TEXTS = st.sampled_from(
    "--hicache --hicache-size --hicache-size=3 --hicache-s=3 --tp --tp=8 --page-size --page= 8 -1 "
    "0.5 x --no-dllm-fdfo --dllm --enable-hier --enable-hierarchical-cache=1 -h --he -tp - -- "
    "--cuda-graph-bs --numa-node --model --config --lora-paths {} --nsa-prefill-cp-mode a=b".split()
) | st.text(max_size=8)
LINES = st.lists(TEXTS, max_size=6)


@given(LINES, st.sampled_from(VERSIONS))
def test_no_line_raises(line: list[str], version: str) -> None:
    """Any words are answered: values, a refusal, or leftovers that are words of the line."""
    parsed = parse_sglang_arguments(words(*line), version)
    assert set(parsed.unrecognized) <= set(words(*line))
    assert parsed.error != ""


@given(LINES, st.sampled_from(VERSIONS))
def test_arguments_left_out_change_nothing(line: list[str], version: str) -> None:
    """Only those that a word may mean are declared: with all of them the answer is the same."""
    rows = argument_table(version).rows
    texts = [sglang_arguments._text(word.text, word) for word in words(*line)]

    def outcome(chosen: Any) -> Any:
        try:
            return sglang_arguments._build(chosen).parse_known_args(texts, argparse.Namespace())
        except RefusedError as refusal:
            return str(refusal)

    assert outcome(sglang_arguments._possible_rows(rows, texts)) == outcome(iter(rows))


def test_the_table_is_what_its_generator_writes() -> None:
    """So that a release that is added changes its own lines alone."""
    text = table.TABLE.read_text()
    declared = table.declared(json.loads(text))
    assert table.compact(declared) == text


@pytest.mark.parametrize("word", ["${ARGS[@]}", "$@", "$EXTRA"])
def test_a_word_that_nothing_sets_may_hold_the_model(word: str) -> None:
    """A file that was not read may set it: no server is refused for want of --model-path."""
    open_word = Word(word, Origin("launch.sh", 2), (word.strip("${}[@]") or word,))
    found = parse_sglang_arguments((open_word, Word("--port", Origin("x")), Word("1", Origin("x"))))
    assert found.error is None
    assert isinstance(found.value("model_path"), Unknown)
    known = parse_sglang_arguments((Word("--port", Origin("x")), Word("1", Origin("x"))))
    assert known.error == "the following arguments are required: --model-path/--model"
