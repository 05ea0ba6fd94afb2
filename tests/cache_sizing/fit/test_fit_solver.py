"""fit against check: its answer passes, and one step more of what it sized does not."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from checks.framework.finding import Status
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.hugetlb.facts import read_hugetlb_facts
from checks.memory.facts import read_memory
from checks.numa.facts import read_numa
from checks.run_checks.facts import READERS, read_facts
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.fit.fit_launch import FitResult, fit_launch, hints
from preflight.cache_sizing.fit.judged_values import KEEP, SizeBound, planned_root
from preflight.cache_sizing.fit.launch_edit import edit_texts, launch_texts
from preflight.cache_sizing.fit.launch_values import SizeValues
from preflight.cache_sizing.fit.solver import Solver, largest, largest_from
from preflight.command_inputs.launch_words import LaunchWords
from preflight.host_tuning.records import PoolTarget
from preflight.host_tuning.refusal import REFUSED
from tests.builders.examples import fewer
from tests.builders.fit_hosts import (
    PLANNED,
    Case,
    applied,
    cases,
    check_after_plan,
    checked,
    host_of,
    mended,
    root_of,
    written,
)
from tests.builders.synthetic import (
    PATIENCE_SECONDS,
    SyntheticHost,
    erdma_host,
    gpu_host,
    plain_host,
    tree_of,
)

pytestmark = pytest.mark.slow

GB = 10**9
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B"
STORE = "--enable-hierarchical-cache --hicache-storage-backend mooncake"
SCRIPT = f"""\
export MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_PROTOCOL=tcp
export MC_STORE_USE_HUGEPAGE=1 MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb
{SERVER} --tp 2 --page-size 64 {STORE} --hicache-size 2
"""


def fit(folder: Path, case: Case) -> FitResult:
    words, host = written(folder, case), host_of(tree_of(case.host))
    goal, keep_bytes = case.goal, case.keep_bytes
    found = fit_launch(words, host, goal, keep_bytes, False, PATIENCE_SECONDS)
    assert isinstance(found, FitResult)
    return found


class Judge:
    """What check says of a case's script with other values, on its host as planned for them."""

    def __init__(self, folder: Path, case: Case, found: FitResult) -> None:
        self._folder, self._case, self._sizes = folder, case, found.answer.sizes
        texts = launch_texts(written(folder, case).words[0], (), {})
        assert texts is not None
        self._texts, self._tree = texts, tree_of(mended(case.host))
        self._others: dict[str, Any] = {}

    def problems(self, values: SizeValues) -> set[Any]:
        return check_after_plan(self._tree, self.script(values), self._others).problems

    def script(self, values: SizeValues) -> LaunchWords:
        changed = edit_texts(self._texts, self._sizes, values)
        assert not changed.advice
        text = changed.edits[0].after if changed.edits else None
        return written(self._folder, self._case, text)


# The answer has an arena on 2 MiB pages, and the least sizes have none.
ARENA = Case(
    replace(
        erdma_host(),
        nodes=1,
        node_bytes=248 * GIB,
        node_free_bytes=188 * GIB,
        pools={2 * MIB: 0, GIB: 0},
    ),
    f"""\
export MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_PROTOCOL=tcp MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb
export MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=1GB MC_MMAP_ARENA_POOL_SIZE=4gb
{SERVER} --page-size 64 {STORE} --hicache-size 1
""",
    "l2",
    0,
    "0.5.2",
    "0.3.13.post1",
)

# With the plan applied, check once warned that the next boot loses the 2 MiB pages.
REBOOT = Case(
    replace(
        plain_host(),
        nodes=2,
        node_bytes=62 * GIB,
        pools={2 * MIB: 3000, GIB: 0},
        cgroup={"hugetlb.2MB.rsvd.max": str(40 * GIB), "memory.max": str(119 * GIB)},
        services={("10.0.0.1", 50051): "master"},
    ),
    f"""\
export MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_PROTOCOL=tcp MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb
export MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=1GB MC_MMAP_ARENA_POOL_SIZE=4gb
export MOONCAKE_LOCAL_HOSTNAME=a
{SERVER} --page-size 64 {STORE} --hicache-size 1 &
{SERVER} --base-gpu-id 1 --port 30001 --page-size 64 {STORE} --hicache-size 2 &
python3 -m mooncake.mooncake_store_service --port 9300
""",
    "l2",
    40 * GB,
    "0.5.2",
    "0.3.13.post1",
)


@given(cases())
@example(ARENA)
@example(REBOOT)
@fewer(2, phases=[Phase.explicit, Phase.generate])
def test_the_answer_passes_check_and_one_step_more_does_not(case: Case) -> None:
    """On random hosts: what check finds of the answer it finds of the least sizes as well."""
    with tempfile.TemporaryDirectory() as name:
        found = fit(Path(name), case)
        answer, judge = found.answer, Judge(Path(name), case, found)
        unavoidable = judge.problems(answer.least.values)
        if answer.fits is None:
            refused = {status for _, status, _ in unavoidable}
            blocking = {finding.check for finding in answer.blocking}
            # What is kept is fit's own gate; what a server refuses of itself no plan can mend.
            own = blocking <= {KEEP, *REFUSED}
            assert own or Status.FAIL in refused, answer.blocking
            return
        assert judge.problems(answer.values) <= unavoidable
        for bound in answer.bounds:
            if {finding.check for finding in bound.findings} != {KEEP}:
                assert judge.problems(one_more(answer.values, bound)) - unavoidable


@given(cases())
@fewer(5, phases=[Phase.explicit, Phase.generate])
def test_the_pool_that_fit_says_is_needed_to_the_page(case: Case) -> None:
    """Each pool that has to grow, set to one page less: check misses it."""
    with tempfile.TemporaryDirectory() as name:
        found = fit(Path(name), case)
        if found.answer.fits is None:
            return
        judge = Judge(Path(name), case, found)
        unavoidable = judge.problems(found.answer.least.values)
        words = judge.script(found.answer.values)
        targets = [t for t in found.answer.fits.pools if t.pages > (t.now_pages or 0)]
        for short in targets:
            fewer = [t._replace(pages=t.pages - (t is short)) for t in targets]
            tree = applied(tree_of(mended(case.host)), fewer)
            assert checked(tree, words).problems - unavoidable


def one_more(values: SizeValues, bound: SizeBound) -> SizeValues:
    if bound.size == "l2":
        return values._replace(l2_bytes=bound.value_bytes)
    return values._replace(segment_bytes=bound.value_bytes)


@given(st.integers(0, 300), st.integers(1, 500), st.integers(0, 5000))
def test_the_search_finds_the_end_of_what_passes(first: int, more: int, above: int) -> None:
    """Below ``first`` everything fails as well; what passes reaches over twice that."""
    end = 2 * first + more

    def passes(number: int) -> bool:
        return first <= number <= end

    assert largest(passes, 0, end + above) == end
    assert largest_from(passes, first, end + above) == end


@given(st.integers(2, 10**6), st.integers(0, 50), st.integers(0, 10**7))
def test_a_narrow_stretch_is_found_where_what_is_too_small_is_told(
    first: int, more: int, above: int
) -> None:
    """However narrow it is, and however far below the top."""
    end = first + more

    def passes(number: int) -> bool:
        return first <= number <= end

    assert largest(passes, 1, end + above, lambda number: number < first) == end


def test_nothing_passes_where_nothing_does() -> None:
    assert largest(lambda number: False, 1, 1000) is None
    assert largest(lambda number: False, 1, 1000, lambda number: number < 17) is None
    assert largest(lambda number: True, 5, 4) is None


@given(st.integers(1, 9000), st.sampled_from([None, 0, 1]), st.sampled_from([2 * MIB, GIB]))
@fewer(3)
def test_a_planned_host_is_the_host_with_the_plan_applied(
    more: int, node: int | None, page: int
) -> None:
    """Readers see in front of the plan what they see in the files behind it."""
    pages = more if page == 2 * MIB else more % 40 + 1
    tree = tree_of(replace(gpu_host(), pools={2 * MIB: 100, GIB: 1}))
    now = 100 if page == 2 * MIB else 1
    total = now if node is not None else 2 * now
    target = PoolTarget(page, node, total + pages, total)
    before = planned_root(root_of(tree), [target], 2 * MIB)
    behind = root_of(applied(tree, [target]))
    hugetlb, wanted = (read_hugetlb_facts(root, None) for root in (before, behind))
    assert hugetlb.hugetlb == wanted.hugetlb
    assert hugetlb.memory_available_bytes == wanted.memory_available_bytes
    assert hugetlb.node_free_bytes == wanted.node_free_bytes
    memory, applied_memory = (read_memory(root, None) for root in (before, behind))
    assert memory.value("MemFree") == applied_memory.value("MemFree")
    assert read_numa(before, None).nodes == read_numa(behind, None).nodes


@given(cases())
@fewer(5, phases=[Phase.explicit, Phase.generate])
def test_a_plan_changes_no_other_topic(case: Case) -> None:
    """What fit reads once, and the examples above too: all but memory, HugeTLB and NUMA."""
    tree = tree_of(case.host)
    target = PoolTarget(2 * MIB, None, 4096, 0)
    before, after = (
        read_facts(root_of(one), None, PATIENCE_SECONDS) for one in (tree, applied(tree, [target]))
    )
    changed = {topic for topic in READERS if repr(before.topic(topic)) != repr(after.topic(topic))}
    assert {"memory", "hugetlb"} <= changed <= set(PLANNED)


def test_a_node_without_memory_leaves_its_pages_to_the_others() -> None:
    """As the kernel spreads them: node 1 has 1 GiB, and the rest comes from node 0."""
    tree = tree_of(replace(gpu_host(), node_bytes=64 * GIB))
    path = "/sys/devices/system/node/node1/meminfo"
    tree.files[path] = f"Node 1 MemTotal: {64 << 20} kB\nNode 1 MemFree: {1 << 20} kB\n"
    target = PoolTarget(2 * MIB, None, 4096, 0)
    planned = planned_root(root_of(tree), [target], 2 * MIB)
    hugetlb = read_hugetlb_facts(planned, None)
    pool = hugetlb.hugetlb.pool(2 * MIB)
    assert not isinstance(pool, Unknown)
    assert {node: share.free_pages for node, share in pool.nodes.items()} == {0: 3584, 1: 512}
    assert hugetlb.node_free_bytes[1] == 0


def case(goal: str = "l2", script: str = SCRIPT, keep: int = 0, **changes: Any) -> Case:
    host: SyntheticHost = replace(plain_host(), services={("10.0.0.1", 50051): "master"})
    return Case(replace(host, **changes), script, goal, keep)


def test_l2_takes_what_the_gate_leaves_and_the_segment_stays(tmp_path: Path) -> None:
    """64 GiB with 62.4 available, 4 GiB of segment: each GB of L2 counts twice on two ranks.
    (available - pages - 10 GiB) // 2 is what SGLang compares a rank's pool with."""
    found = fit(tmp_path, case()).answer
    assert found.fits is not None
    available = (64 * GIB - 64 * GIB // 20) + 64 * GIB // 40
    pages = sum(target.pages for target in found.fits.pools)
    size = found.values.l2_bytes
    assert size is not None
    assert found.values.segment_bytes is None
    assert size * 2 <= available - pages * 2 * MIB - 10 * GIB < (size + GB) * 4
    assert [bound.findings[0].check for bound in found.bounds] == ["sglang.admission-gate"]


def test_pool_gives_the_segment_what_is_left_and_leaves_l2(tmp_path: Path) -> None:
    found = fit(tmp_path, case("pool")).answer
    assert found.values.l2_bytes is None
    assert found.values.segment_bytes is not None
    assert found.values.segment_bytes > 30 * GIB


def test_balanced_gives_both_as_much(tmp_path: Path) -> None:
    """They differ by less than a step of L2 takes: 1 GB on 2 ranks, which the gate counts twice."""
    values = fit(tmp_path, case("balanced")).answer.values
    assert values.l2_bytes is not None
    assert values.segment_bytes is not None
    assert abs(2 * values.l2_bytes - values.segment_bytes) <= 4 * GB + MIB


SERVICE = """\
export MOONCAKE_MASTER=10.0.0.1:50051 MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL=tcp
export MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb MOONCAKE_LOCAL_HOSTNAME=a
python3 -m mooncake.mooncake_store_service --port 9300
"""


def test_what_is_to_be_kept_stays_available(tmp_path: Path) -> None:
    """A store service alone: no gate of SGLang's, so --keep binds to the page."""
    kept = fit(tmp_path, case("pool", SERVICE, 20 * GIB)).answer
    more = fit(tmp_path, case("pool", SERVICE, 24 * GIB)).answer
    assert [finding.check for finding in kept.bounds[0].findings] == [KEEP]
    assert kept.values.segment_bytes is not None
    assert more.values.segment_bytes == kept.values.segment_bytes - 4 * GIB


def test_an_arena_that_is_not_used_up_is_made_as_large_as_what_lies_in_it(tmp_path: Path) -> None:
    """16 GiB for each rank, of which 2 GiB of segment and a local buffer of 16 MiB are used."""
    script = f"export MC_MMAP_ARENA_POOL_SIZE=16gb\n{SCRIPT}"
    found = fit(tmp_path, case(script=script)).answer
    assert found.values.arena_bytes == 2 * GIB + 16 * MIB
    assert found.values.l2_bytes == fit(tmp_path, case()).answer.values.l2_bytes


def test_an_arena_that_nothing_creates_is_taken_away(tmp_path: Path) -> None:
    script = SCRIPT.replace("MC_STORE_USE_HUGEPAGE=1", "MC_MMAP_ARENA_POOL_SIZE=16gb")
    found = fit(tmp_path, case(script=script)).answer
    assert found.values.arena_bytes == 0


def hinted(folder: Path, of: Case) -> tuple[str, ...]:
    found = fit(folder, of)
    return tuple(hints(found.state, found.machine, found.answer))


def test_what_a_smaller_pool_would_bring_is_said_and_true(tmp_path: Path) -> None:
    """40 of 64 GiB are reserved and hardly taken: the hint's size is what an empty pool allows."""
    crowded = case(pools={2 * MIB: 20480, GIB: 0})
    empty = fit(tmp_path, case()).answer
    (said,) = (hint for hint in hinted(tmp_path, crowded) if "nothing here lowers" in hint)
    assert empty.values.l2_bytes is not None
    assert f"--hicache-size {empty.values.l2_bytes // GB} would pass" in said


def test_what_regular_pages_would_bring_is_said_and_true(tmp_path: Path) -> None:
    """SGLang's gate asks for a pool's size of available memory, whatever the pool lies on."""
    (said,) = hinted(tmp_path, case())
    regular = SCRIPT.replace("MC_STORE_USE_HUGEPAGE=1 ", "")
    size = fit(tmp_path, case(script=regular)).answer.values.l2_bytes
    assert size is not None
    assert f"without MC_STORE_USE_HUGEPAGE, --hicache-size {size // GB} would pass" in said
    assert hinted(tmp_path, case(script=regular)) == ()


@pytest.mark.parametrize(
    ("model", "l2_tokens", "segment_tokens"),
    [
        # 36 layers, 8 heads shared by 2 ranks, K and V of 128 numbers, 2 bytes each.
        ("Qwen/Qwen3-8B", GIB // (36 * 4 * 2 * 128 * 2), GIB // (36 * 8 * 2 * 128 * 2)),
        # 61 layers, one latent row of 576 numbers, which each rank holds and one rank stores.
        ("deepseek-ai/DeepSeek-V3", GIB // (61 * 576 * 2), GIB // (61 * 576 * 2)),
    ],
)
def test_what_a_gibibyte_buys(
    model: str, l2_tokens: int, segment_tokens: int, tmp_path: Path
) -> None:
    found = fit(tmp_path, case("balanced", SCRIPT.replace("Qwen/Qwen3-8B", model))).answer
    l2, segment = found.shares
    assert (l2.host_bytes, l2.pages, segment.host_bytes) == (2 * GIB, 1024, GIB)
    assert (l2.tokens, segment.tokens) == (l2_tokens, segment_tokens)


def test_two_servers_get_the_same_and_all_their_ranks_count(tmp_path: Path) -> None:
    second = f"{SERVER} --base-gpu-id 2 --port 30001 --page-size 64 {STORE} --hicache-size 5\n"
    alone = fit(tmp_path, case(node_bytes=512 * GIB)).answer.values.l2_bytes
    both = fit(tmp_path, case(script=SCRIPT + second, node_bytes=512 * GIB)).answer
    assert alone is not None
    assert both.values.l2_bytes is not None
    assert both.values.l2_bytes < alone
    assert both.sizes.l2 is not None
    assert [place.old for place in both.sizes.l2.places] == ["2", "5"]


def test_a_gate_that_cannot_be_read_is_named_and_the_others_answer(tmp_path: Path) -> None:
    """Without the limit of locked memory on a host with RDMA: unknown, with the rest's answer."""
    host = replace(
        gpu_host(),
        services={("10.0.0.1", 50051): "master"},
        capabilities=0,
        files={"/proc/self/limits": None},
    )
    script = SCRIPT.replace("MOONCAKE_PROTOCOL=tcp", "MOONCAKE_PROTOCOL=rdma")
    found = fit(tmp_path, Case(host, script, "l2", 0))
    assert found.exit_code == 3
    assert {finding.check for finding in found.answer.unknown} == {"memlock.limit"}
    assert found.answer.fits is not None


@pytest.mark.parametrize("name", ["/proc/meminfo", "/sys/kernel/mm/hugepages/hugepages-2048kB"])
def test_memory_that_cannot_be_read_is_never_a_size_that_fits(tmp_path: Path, name: str) -> None:
    files = {path: None for path in tree_of(plain_host()).files if path.startswith(name)}
    found = fit(tmp_path, case(files=files))
    assert found.exit_code in (2, 3)
    assert found.exit_code == 2 or found.answer.unknown


def test_a_size_that_nothing_judges_is_no_answer(tmp_path: Path) -> None:
    """A model that nobody knows, and a ratio: no size of L2 is known, so none of the segment is."""
    script = SCRIPT.replace("Qwen/Qwen3-8B", "/models/own").replace("-size 2", "-ratio 2")
    found = fit(tmp_path, case("pool", script))
    assert found.exit_code == 3
    assert found.answer.fits is None
    assert found.answer.reason == "'/models/own': not in the table of well-known models"
    assert "launch.sizes" in {finding.check for finding in found.answer.unknown}


@pytest.mark.parametrize("goal", ["l2", "pool", "balanced"])
def test_a_host_whose_memory_is_not_known_takes_no_size(goal: str, tmp_path: Path) -> None:
    """The gates that are left could allow petabytes: no size is given."""
    names = ("/proc/meminfo", "/sys/kernel/mm", "/sys/devices/system/node")
    files = {path: None for path in tree_of(plain_host()).files if path.startswith(names)}
    found = fit(tmp_path, case(goal, files=files))
    assert found.exit_code == 3
    assert {"memory.host", "hugetlb.shortage"} <= {f.check for f in found.answer.unknown}
    assert found.answer.fits is None
    assert found.answer.reason
    assert found.edited is None


def test_a_goal_that_the_launch_has_nothing_for_is_a_usage_error(tmp_path: Path) -> None:
    bare = f"{SERVER} --tp 2\n"
    with pytest.raises(UsageError, match="--enable-hierarchical-cache"):
        fit(tmp_path, case(script=bare))
    with pytest.raises(UsageError, match="attaches a Mooncake store"):
        fit(tmp_path, case("pool", bare))
    none = SCRIPT.replace("SIZE=4gb", "SIZE=0")
    with pytest.raises(UsageError, match="contributes no segment"):
        fit(tmp_path, case("pool", none))


def test_what_a_setting_mends_stops_no_size(tmp_path: Path) -> None:
    """The sizes are those of the host with it set; that it fails until then, and how, is said."""
    script = SCRIPT.replace("MOONCAKE_PROTOCOL=tcp", "MOONCAKE_PROTOCOL=rdma")
    host = replace(gpu_host(), services={("10.0.0.1", 50051): "master"}, capabilities=0)
    before = replace(host, memlock=("8388608", "8388608"))
    found = fit(tmp_path, Case(before, script, "balanced", 0, "0.5.20"))
    there = fit(tmp_path, Case(mended(host), script, "balanced", 0, "0.5.20"))
    assert found.answer.values == there.answer.values
    assert (found.exit_code, there.exit_code) == (1, 0)
    failed = {finding.check for finding in found.answer.beside if finding.status is Status.FAIL}
    assert failed == {"memlock.limit"}
    assert any("memlock=unlimited" in command for command in found.host_commands)


def test_a_containers_limit_that_the_launch_writes_stops_no_size(tmp_path: Path) -> None:
    master = "-e MOONCAKE_MASTER=10.0.0.1:50051 -e MOONCAKE_PROTOCOL=tcp"
    docker = f"docker run --gpus all --network host --memory 9g {master} image"
    script = f"{docker} {SERVER} --page-size 64 {STORE} --hicache-size 2\n"
    limited = fit(tmp_path, case("l2", script))
    free = fit(tmp_path, case("l2", script.replace("--memory 9g ", "")))
    assert limited.answer.values == free.answer.values
    assert limited.answer.fits is not None
    assert limited.exit_code == 1
    assert any("the container at" in command for command in limited.host_commands)


def test_pages_that_a_boot_loses_are_no_containers_limit(tmp_path: Path) -> None:
    """No command keeps 1 GiB pages for the next boot: nothing is said of a container either."""
    script = f"export MC_STORE_HUGEPAGE_SIZE=1GB\n{SERVICE}"
    result = fit(tmp_path, case("pool", script, pools={2 * MIB: 0, GIB: 50}))
    lost = [each for each in result.answer.beside if each.check == "hugetlb.after-reboot"]
    assert [each.settings for each in lost] == [()]
    assert not [text for text in result.host_commands if "container" in text]


def test_each_limit_of_a_host_binds_by_its_own_name(tmp_path: Path) -> None:
    """A memory cgroup, a hugetlb cgroup: each is what stops one step more."""
    regular = SERVICE.replace("MC_STORE_USE_HUGEPAGE=1 ", "")
    found = {
        "memory.cgroup": case("pool", regular, cgroup={"memory.max": str(30 * GIB)}),
        "hugetlb.cgroup-limit": case(cgroup={"hugetlb.2MB.rsvd.max": str(9 * GIB)}),
    }
    for check, of in found.items():
        (bound,) = fit(tmp_path, of).answer.bounds
        assert check in {finding.check for finding in bound.findings}


@pytest.mark.parametrize("taken", [0, 1, 4, 5])
def test_a_size_that_takes_less_than_is_thought_is_found_in_few_steps(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that the launch's own settings leave out takes nothing: 20,000 steps were tried."""
    asked: list[int] = []
    most, step = 1_000_000, 4
    end = 900_000

    def fits(_: Solver, number: int) -> bool:
        asked.append(number)
        return number <= end

    room = SimpleNamespace(room_bytes=0)

    def best(_: Solver, number: int) -> SimpleNamespace:
        room.room_bytes = 200 + (end - number) * taken
        return SimpleNamespace(**vars(room))

    monkeypatch.setattr(Solver, "fits", fits)
    monkeypatch.setattr(Solver, "best", best)
    solver = object.__new__(Solver)
    assert solver.largest(lambda number: number, 0, most, step) == end  # type: ignore[arg-type,return-value]
    assert len(asked) < 60
