"""What decode offload writes of a request, against SGLang's real manager and HiCacheController.

What those wrote is kept in ``tests/data/decode_keys.json``; with MOONCAKE_PREFLIGHT_SGLANG=1 they
run again. After a change of the cases: ``python -m tests.cache_sizing.traces.test_decode_real``.
"""

from __future__ import annotations

import hashlib
import json
import random
from functools import cache
from typing import Any

import pytest

from checks.releases.sglang import sglang_release
from tests.cache_sizing.traces.real_sglang import answers_of, on_sglang
from tests.paths import ROOT

RECORD = ROOT / "tests" / "data" / "decode_keys.json"
VERSIONS = "0.5.4 0.5.10.post1 0.5.14 0.5.15 0.5.20 0.5.23".split()
COUNT = 110


@cache
def cases() -> tuple[dict[str, Any], ...]:
    """Prompts and answers; steps of more than a token are a draft's."""
    rng = random.Random("decode")

    def case() -> dict[str, Any]:
        page = rng.choice((4, 16, 64))
        most = rng.choice((1, 1, 4))

        def tokens(count: int) -> list[int]:
            return [rng.randrange(1 << 17) for _ in range(count)]

        return {
            "page_tokens": page,
            "prompt": tokens(rng.randrange(1, 6 * page)),
            "steps": [tokens(rng.randint(1, most)) for _ in range(rng.randrange(1, 4 * page))],
            "stride": rng.choice((0, 0, page, 2 * page, 2 * page + 1)),
            "l1_tokens": 64 * page,
            "ratio": 2.0,
            "policy": "write_through",
            "threshold": page,
        }

    return tuple(case() for _ in range(COUNT))


def run_real(version: str) -> list[list[str]]:
    unified = sglang_release(version).unified_cache
    return answers_of("decode_runner", version, {"unified": unified, "cases": cases()})


def summary(keys: list[str]) -> list[Any]:
    return [len(keys), hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]]


def page_keys(tokens: list[int], page: int, pairs: bool) -> list[str]:
    """The key of each whole page, as a radix cache asks for it."""
    size = len(tokens) - pairs
    keys, digest = list[str](), b""
    for start in range(0, size // page * page, page):
        units = [tokens[at : at + 1 + pairs] for at in range(start, start + page)]
        own = b"".join(token.to_bytes(4, "little") for unit in units for token in unit)
        digest = hashlib.sha256(digest + own).digest()
        keys.append(digest.hex())
    return keys


def expected(version: str, case: dict[str, Any]) -> list[str]:
    """0.5.4: all of it once it is done, the prompt too. Later what is whole of the answer.

    Whole strides behind the prompt's whole pages, without what the last step brings, and without
    the last token before it: its KV is not there yet."""
    page, prompt, steps = case["page_tokens"], case["prompt"], case["steps"]
    whole = [token for step in steps for token in step]
    keys = page_keys(prompt + whole, page, False)
    if version == "0.5.4":
        return keys
    before = len(prompt) // page * page
    stride = max(page, case["stride"] // page * page)
    there = len(prompt) + len(whole) - len(steps[-1]) - 1 - before
    return keys[before // page :][: max(0, there) // stride * stride // page]


@cache
def recorded(version: str) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(RECORD.read_text())[version]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_decode_offload_writes_whole_strides_of_what_it_generated(version: str) -> None:
    rows = recorded(version)
    assert [summary(expected(version, case)) for case in cases()] == rows
    assert len(rows) == COUNT
    assert sum(count > 0 for count, _ in rows) > COUNT // 2


@pytest.mark.slow
@on_sglang
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_recorded_is_what_sglangs_own_write(version: str) -> None:
    assert [summary(keys) for keys in run_real(version)] == recorded(version)


def record() -> None:
    rows = (f' "{name}": {json.dumps([*map(summary, run_real(name))])}' for name in VERSIONS)
    RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    record()
