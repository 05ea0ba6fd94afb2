"""Blocks on their way through the tiers: written traces, each move by hand."""

from __future__ import annotations

import random

import pytest

from preflight.base.usage_error import UsageError
from preflight.traces.curve import optimum
from preflight.traces.formats import Request, chained
from preflight.traces.tiers import Flows, Replay, Routing, Rules, StorePool, StoreRules, TierSizes
from tests.tables import each_row
from tests.traces.test_curve import counted, made

# Tokens of a block here, and of a page.
BLOCK = 64


def sizes(
    l1: int, l2: int | None = None, pool: int | None = None, disk: int | None = None
) -> TierSizes:
    """In blocks."""
    return TierSizes(
        l1 * BLOCK, *(None if each is None else each * BLOCK for each in (l2, pool, disk))
    )


def request(prompt: str, session: int | None = None) -> Request:
    blocks = chained(list(prompt), "")
    return Request(blocks, len(blocks) * BLOCK, 1, None, session)


def replayed(prompts: str, size: TierSizes, rules: Rules) -> tuple[list[str], Flows]:
    """Prompts stand apart by spaces, a letter is a block; the tiers of what each finds."""
    replay = Replay(size, rules, BLOCK, BLOCK)
    served = [replay.take(request(prompt)) for prompt in prompts.split()]
    short = {"L1": "1", "L2": "2", "L3": "3", "SSD": "S"}
    return ["".join(short[tier] for tier in found) for found in served], replay.flows


# No threshold: a block is enough to be fetched. Pools evict one block at a time.
EAGER = Rules(prefetch_threshold=1)


@each_row("policy", ["write_through", "write_through_selective", "write_back"])
@each_row("l2", [3, 6, 9])
def test_a_fetch_that_fills_the_second_tier_ends_there(policy: str, l2: int) -> None:
    """Else a request gives up what it fetched a moment ago: no more is found than there is room."""
    chosen = random.Random(l2)
    prompts = [
        "".join(chosen.choice("ab") for _ in range(chosen.randint(1, 6))) for _ in range(400)
    ]
    size = sizes(6, l2, 200)
    served, _ = replayed(" ".join(prompts), size, EAGER._replace(write_policy=policy))
    assert any("3" in found for found in served)
    assert all(found.count("3") <= l2 for found in served)


@pytest.mark.parametrize(
    ("prompts", "size", "rules", "found"),
    [
        pytest.param("ab ab", sizes(4), EAGER, ["", "11"], id="L1"),
        pytest.param("ab cd ab", sizes(2, 4), EAGER, ["", "", "22"], id="L2 keeps what L1 evicts"),
        pytest.param("ab cd ab", sizes(2), EAGER, ["", "", ""], id="no L2: lost"),
        pytest.param("ab cd ef ab", sizes(2, 4), EAGER, ["", "", "", ""], id="L2 includes L1"),
        pytest.param(
            "ab cd ef ab",
            sizes(2, 4),
            EAGER._replace(write_policy="write_back"),
            ["", "", "", "22"],
            id="write_back: L2 has what L1 has not",
        ),
        pytest.param(
            "ab cd ab",
            sizes(2, 4),
            EAGER._replace(write_policy="write_through_selective"),
            ["", "", ""],
            id="selective: once is not enough",
        ),
        pytest.param(
            "ab ab cd ab",
            sizes(2, 4),
            EAGER._replace(write_policy="write_through_selective"),
            ["", "11", "", "22"],
            id="selective: twice is",
        ),
        pytest.param(
            "ab cd ef ab", sizes(2, 4, 9), EAGER, ["", "", "", "33"], id="the store has what L2 had"
        ),
        pytest.param(
            "ab cd ef ab",
            sizes(2, 4, 9),
            EAGER._replace(prefetch_threshold=3 * BLOCK),
            ["", "", "", ""],
            id="too little to fetch",
        ),
        pytest.param(
            "ab cd ef ab",
            sizes(2, 4, 5),
            EAGER,
            ["", "", "", ""],
            id="the pool evicts the oldest, and the rest needs it",
        ),
        pytest.param(
            "ab cd ef ab", sizes(2, 4, 5, 9), EAGER, ["", "", "", "SS"], id="the disk has all"
        ),
        pytest.param(
            "ab cd ef ab",
            sizes(2, 4, 5, 9),
            EAGER._replace(store=StoreRules(disk_gets_evicted=True)),
            ["", "", "", "SS"],
            id="the disk has what was evicted",
        ),
        pytest.param("abc abc", sizes(2, 4), EAGER, ["", "11"], id="longer than L1"),
        pytest.param(
            "ab cd ef ab",
            sizes(2, 3, 9),
            EAGER._replace(buffers=True),
            ["", "", "", "33"],
            id="buffer_only: the store has it, and L2 nothing",
        ),
        pytest.param(
            "abc def abc",
            sizes(3, 3, 9),
            EAGER._replace(buffers=True),
            ["", "", ""],
            id="buffer_only: what is more than 0.9 of L2 is not fetched",
        ),
        pytest.param(
            "ab ab ab", sizes(4), EAGER._replace(caches=2), ["", "", "11"], id="round robin"
        ),
        pytest.param(
            "ab ab cd cd ab",
            sizes(4),
            EAGER._replace(caches=2, routing=Routing("cache-aware")),
            ["", "11", "", "11", "11"],
            id="cache aware",
        ),
        pytest.param(
            "ab ab",
            sizes(4, 8, 16),
            EAGER._replace(caches=2),
            ["", "33"],
            id="side by side, with one store",
        ),
    ],
)
def test_where_each_block_is_found(
    prompts: str, size: TierSizes, rules: Rules, found: list[str]
) -> None:
    assert replayed(prompts, size, rules)[0] == found


def pool(memory: int, lease_seconds: float = 0.0) -> StorePool:
    return StorePool(memory, None, StoreRules(0.5, 0.1, lease_seconds), Flows())


def test_the_store_evicts_a_part_and_what_is_above_the_watermark() -> None:
    """Of 100 blocks of memory, half: the 51st evicts 51 x (0.51 - 0.5 + 0.1) of them, rounded up:
    6. Equal to Mooncake's own, see tests/capacity/test_capacity_real.py."""
    store = pool(50)
    for block in range(51):
        store.put([block], float(block))
    assert [block for block in range(51) if block in store] == list(range(6, 51))


def test_what_was_asked_for_is_leased() -> None:
    """It stays, whatever came later; and goes by when its lease ended, not by when it was asked."""
    store = pool(50, lease_seconds=100.0)
    for block in range(50):
        store.put([block], float(block))
    assert store.find([0, 1, 2], 60.0) == ["L3"] * 3
    store.put([50], 61.0)
    assert [block for block in range(51) if block not in store] == list(range(3, 9))
    # At 160 their leases end: written at 155 stands before them, at 165 behind.
    for number, now in ((51, 155.0), (52, 165.0)):
        store.put([number], now)
    for number in range(53, 60):
        store.put([number], 170.0)
    gone = [block for block in range(53) if block not in store]
    assert gone == list(range(3, 15))


def test_what_comes_to_a_store_whose_memory_is_leased_goes_at_once() -> None:
    store = pool(5, lease_seconds=10.0)
    for block in range(5):
        store.put([block], 0.0)
    store.find(range(5), 0.0)
    store.put([5], 9.0)
    assert [block for block in range(6) if block in store] == list(range(5))
    # Their leases end: 6 x (0.6 - 0.5 + 0.1), rounded up.
    store.put([6], 10.0)
    assert [block for block in range(7) if block in store] == [2, 3, 4, 6]


def test_what_moved_is_counted() -> None:
    _, flows = replayed("ab cd ef ab", sizes(2, 4, 9), EAGER)
    assert dict(flows.moved) == {("L1", "L2"): 6, ("L2", "L3"): 6, ("L3", "L2"): 2, ("L2", "L1"): 2}
    assert dict(flows.evicted) == {"L1": 6, "L2": 4}
    # The last token of a prompt is always computed, so the page that it ends is.
    assert dict(flows.saved) == {"L3": BLOCK}
    assert (flows.accesses, flows.input_tokens, flows.missed) == (8, 8 * BLOCK, 0.75)


def test_a_sticky_conversation_stays() -> None:
    replay = Replay(sizes(4), Rules(caches=3, routing=Routing("sticky")), BLOCK, BLOCK)
    replay.take(request("ab", 5))
    replay.take(request("cd", 4))
    assert replay.take(request("ab", 5)) == ["L1", "L1"]
    with pytest.raises(UsageError, match="does not say which conversation"):
        replay.take(request("ab"))


@each_row("seed", range(6))
@each_row("policy", ["write_through", "write_through_selective", "write_back"])
def test_l1_and_l2_answer_what_the_curve_says(seed: int, policy: str) -> None:
    """L1 is one cache. L2 with write_through holds the same and more, so both are one of its size.

    With write_back they hold no more than both sizes; selective leaves out what is not used again,
    and may do better, but not than the best of both sizes.
    """
    requests = made(seed, 400)
    curve = counted(requests).curve()
    rng = random.Random(seed)
    l1 = max(map(len, requests)) + rng.randint(0, 30)
    l2 = 2 * l1
    rules = EAGER._replace(write_policy=policy, whole_nodes=False)
    replay = Replay(sizes(l1, l2), rules, BLOCK, BLOCK)
    for blocks in requests:
        replay.take(Request(blocks, len(blocks) * BLOCK, 1, None))
    both = replay.flows.rate("L1") + replay.flows.rate("L2")
    assert replay.flows.rate("L1") == pytest.approx(curve.rate(l1))
    if policy == "write_through":
        assert both == pytest.approx(curve.rate(l2))
    counter = counted(requests)
    assert counter.uses is not None
    (best,) = optimum(counter.uses, [l1 + l2])
    selective = policy == "write_through_selective"
    most = best / curve.accesses if selective else curve.rate(l1 + l2)
    assert curve.rate(l1) <= both <= most + 1e-9
