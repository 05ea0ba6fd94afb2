"""The division of the memory that fit chooses: no other that fits keeps more of the workload."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.framework.units import GIB
from checks.host_snapshot.described import Description
from preflight.cache_sizing.capacity.workload import WorkloadOptions
from preflight.cache_sizing.fit.divisions import Chooser, Frontier
from preflight.cache_sizing.fit.fit_launch import FitResult, first_launch, fit_launch
from preflight.cache_sizing.fit.judged_values import CompareBy
from preflight.cache_sizing.fit.launch_values import SizeValues
from preflight.cli.main import run
from preflight.command_inputs.host_source import open_host
from preflight.command_inputs.launch_words import LaunchWords
from tests.builders.examples import some
from tests.builders.synthetic import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

GB = 10**9
# Parts of what was seen before: as far as a few clients differ from all. It is three hundredths
# at an edge (L2 just large enough to hand over all that L1 holds), else one.
WITHIN = 0.035


def best_of(
    model: str,
    described: Description,
    release: str = "0.5.23",
    basis: CompareBy | None = None,
    replaced: tuple[str, str] = ("", ""),
) -> FitResult:
    host = open_host(described.root, PATIENCE_SECONDS)
    command = tuple(word.replace(*replaced) for word in first_launch(model, host).words())
    words = LaunchWords(command, is_command=True)
    launch = words._replace(sglang_version=release)
    found = fit_launch(launch, host, None, 10 * GIB, False, PATIENCE_SECONDS, basis=basis)
    assert isinstance(found, FitResult)
    assert found.choice is not None
    return found


H100 = ("1tb", "8xH100", "8xmlx5", "2")
FEW, MANY = (
    CompareBy(WorkloadOptions(60, 5, 4096)),
    CompareBy(WorkloadOptions(300, 8, 3000), hosts=2),
)
# Half of them: the default workload, and one that is given. All in the random profile.
SETUPS = [
    ("Qwen/Qwen3-32B", H100, "0.5.23", CompareBy()),
    ("deepseek-ai/DeepSeek-V3", ("2tb", "8xH200", "8xmlx5", "2"), "0.5.20", CompareBy()),
    ("Qwen/Qwen3-8B", ("256gb", "2xA40"), "0.5.23", FEW),
    ("Qwen/Qwen3-32B", ("1500gb", "8xH20"), "0.5.22", MANY),
]


@pytest.mark.parametrize(("model", "described", "release", "asked"), some(SETUPS, 2))
def test_no_other_division_of_a_grid_of_20_keeps_more(
    model: str,
    described: tuple[str, ...],
    release: str,
    asked: CompareBy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The divisions lie between those that the checks filled."""
    seen: list[tuple[Chooser, Frontier]] = []
    order = Chooser.order

    def noted(self: Chooser, frontier: Frontier) -> list[SizeValues]:
        seen.append((self, frontier))
        return order(self, frontier)

    monkeypatch.setattr(Chooser, "order", noted)
    found = best_of(model, Description(*described), release, asked)
    ((chooser, frontier),) = seen

    def kept(values: SizeValues) -> float:
        (((least, most),), _) = chooser._replay(chooser.capacity(values))
        return (least + most) / 2

    chosen = kept(found.answer.values)
    for values in frontier.grid(20):
        assert kept(values) <= chosen + WITHIN, values


def test_the_example_of_one_tebibyte() -> None:
    """L1 holds 1.8M tokens: an L2 far below it would hand the store a part of them alone."""
    found = best_of("Qwen/Qwen3-32B", Description(*H100))
    assert found.choice is not None
    rows = {one.about: one for one in found.choice.tried}
    best, balanced, pool = (rows[name] for name in ("best", "balanced", "pool"))
    assert best.unique > 1.25 * balanced.unique
    assert best.kept > balanced.kept + 0.05
    assert best.kept > pool.kept + 0.05
    assert pool.unique > best.unique  # tokens that nothing ever brings there
    assert found.exit_code == 0
    # With L2 as staging alone nothing is held twice.
    staged = rows["staging"]
    assert staged.unique > 1.6 * balanced.unique
    assert staged.kept > best.kept + 0.2
    # No division of write_through holds more than the segment alone, up to the master's watermark.
    assert staged.unique / balanced.unique == pytest.approx(1.71, abs=0.02)
    room, token = 987.84 * GIB - 10 * GIB, 256 << 10
    assert max(one.unique for one in rows.values()) <= 0.9 * room / token
    assert 0.9 * room / token / balanced.unique == pytest.approx(1.79, abs=0.01)


def test_write_back_holds_what_is_in_l1_nowhere_else() -> None:
    """So the same memory keeps twice as much of what is asked again."""
    words = ("--hicache-write-policy write_through", "--hicache-write-policy write_back")
    found = best_of("Qwen/Qwen3-32B", Description(*H100), replaced=words)
    assert found.choice is not None
    rows = {one.about: one for one in found.choice.tried}
    assert rows["best"].kept > 0.86
    assert rows["balanced"].unique == pytest.approx(3_817_000, rel=0.01)  # L1 and L2
    assert (rows["best"].values.l2_bytes or 0) < 10 * GB


def test_what_sglang_demands_is_kept_up_to_0_5_14() -> None:
    """L2 larger than L1, and 0.8 of the difference holds a conversation."""
    found = best_of("Qwen/Qwen3-8B", Description("400gb", "1xA10", "1xmlx5", "1"), "0.5.14")
    assert found.choice is not None
    held = dict(found.choice.tried[0].tier_tokens)
    assert 0.8 * (held["L2"] - held["L1"]) >= 20_480


def test_a_frontier_lies_between_what_was_found() -> None:
    points = (SizeValues(GB, 100 * GIB), SizeValues(5 * GB, 60 * GIB), SizeValues(9 * GB, 0))
    frontier = Frontier(points, 1, 1.0)
    assert frontier.at(3 * GB).segment_bytes == 80 * GIB
    assert frontier.at(7 * GB).segment_bytes == 30 * GIB
    assert [one.l2_bytes for one in frontier.grid(20)] == [size * GB for size in range(1, 10)]
    assert dict(frontier.goals(SizeValues(5 * GB, 30 * GIB)))["l2"].l2_bytes == 7 * GB


HOST = ("--memory", "64gb", "--gpus", "1xH100", "--nics", "1xmlx5")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run(["fit", "--json", "--model", "Qwen/Qwen3-8B", *HOST, *words])
    return code, json.loads(capsys.readouterr().out)["answer"]


def test_a_workload_that_is_given_is_the_one_it_is_chosen_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two clients are kept by every division; four hundred by none."""
    shape = ("--rounds", "5", "--request-length", "1024")
    _, few = told(capsys, "--clients", "2", *shape)
    _, many = told(capsys, "--clients", "400", *shape)
    kept = [one["hits"]["tried"][0]["servers"][0]["most"] for one in (few, many)]
    assert (few["hits"]["workload"]["clients"], few["goal"]) == (2, "best")
    assert kept[0] == 1
    assert kept[1] < 0.9


def test_a_launch_without_nics_says_that_it_speaks_tcp(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--model", "Qwen/Qwen3-8B", "--goal", "l2", *HOST[:4]]
    run(words)
    assert "(--nics): this launch speaks TCP" in capsys.readouterr().out
    run([*words, *HOST[4:]])
    assert "(--nics): this launch speaks TCP" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "memory", "gpus", "code", "says"),
    [
        # The weights leave L1 no token, or a few thousand: SGLang may not even start.
        ("deepseek-ai/DeepSeek-V3", "1tb", "8xH20", 3, "--mem-fraction-static"),
        # SGLang takes no --hicache-size for this model.
        ("deepseek-ai/DeepSeek-V4-Flash", "4tb", "8xB200", 2, "--hicache-ratio"),
        ("Qwen/Qwen3-8B", "64gb", "1xH100", 0, ""),
    ],
)
def test_what_keeps_nothing_or_is_refused_does_not_fit(
    capsys: pytest.CaptureFixture[str], model: str, memory: str, gpus: str, code: int, says: str
) -> None:
    host = ("--memory", memory, "--gpus", gpus, "--nics", "8xmlx5", "--sglang-version", "0.5.23")
    assert run(["fit", "--json", "--model", model, *host]) == code
    text = capsys.readouterr().out
    answer = json.loads(text)["answer"]
    kept = [
        server["most"]
        for one in answer.get("hits", {}).get("tried", ())
        for server in one["servers"]
    ]
    assert (code == 0) == (max(kept, default=0) > 0)
    assert (code == 0) == bool(answer["command"])
    assert says in text
