"""A variable that some release of SGLang reads is no misspelt one; whether that release runs is."""

from __future__ import annotations

import pytest

from preflight.rules.launch_rules import findings
from tests.builders.launch_text import SERVER, understood

SPEC = "SGLANG_ENABLE_SPEC_V2"
LAST = f"{SPEC}: SGLang 0.5.20 is the last that reads it"


def said(line: str, release: str | None, **environment: str) -> list[str]:
    processes = understood((line, environment), sglang_version=release)
    return [f.text for f in findings(processes) if f.rule.id == "variable-misspelt"]


@pytest.mark.parametrize(
    ("release", "texts"),
    [
        ("0.5.9", []),
        ("0.5.20", []),
        ("0.5.21", [LAST]),
        ("0.5.23", [LAST]),
        (None, []),  # which one runs nobody says
    ],
)
def test_a_variable_that_newer_releases_no_longer_read(
    release: str | None, texts: list[str]
) -> None:
    assert said(SERVER, release, SGLANG_ENABLE_SPEC_V2="1") == texts


def test_what_a_program_of_ones_own_reads_is_not_judged() -> None:
    assert said("cargo run --example bench", None, MC_RUST_BENCH_WARMUP="1") == []
    assert said(SERVER, None, MC_RUST_BENCH_WARMUP="1") == [
        "MC_RUST_BENCH_WARMUP: neither Mooncake nor SGLang reads it"
    ]
