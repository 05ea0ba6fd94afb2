"""Laws of the verdict, over random launches: it is a promise about the replay, in every order."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import assume, given
from hypothesis import strategies as st

from checks.framework.pages import Spot
from checks.framework.units import round_up
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Fit, Stock, judge_fit
from checks.releases.mooncake import RELEASES
from preflight.engines.mooncake.allocations import (
    REGULAR_PAGE_BYTES,
    Backing,
    Outcome,
    StockedPools,
)
from preflight.engines.mooncake.replay import hugetlb_usages, pages_by_spot, replay, replay_endless
from preflight.engines.programs.memory_records import (
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
    StoreSettings,
)
from tests.builders.hosts import MIB
from tests.builders.strategies import launches, sizes

RANK = {Fit.FAILS: 0, Fit.UNKNOWN: 1, Fit.FALLS_BACK: 2, Fit.FITS: 3}


def exactly(pages: Mapping[Spot, int]) -> dict[Spot, Stock | Unknown]:
    return {spot: Stock(count, count) for spot, count in pages.items()}


def fails_for_another_reason(launch: Launch) -> bool:
    """A segment too small for regular pages fails however many huge pages there are."""
    return any(process.failure for process in replay_endless(launch))


@st.composite
def launches_with_pages(draw: st.DrawFn) -> tuple[Launch, dict[Spot, int]]:
    """A launch and pools around what it needs, node by node."""
    launch = draw(launches())
    needs = judge_fit(hugetlb_usages(launch), {}).needs
    pages = {
        spot: max(0, count + draw(st.integers(-count, 3) | st.integers(-3, 1)))
        for spot, count in needs.items()
    }
    return launch, pages


@given(launches_with_pages(), st.data())
def test_more_pages_never_worsen_a_verdict(
    given_: tuple[Launch, dict[Spot, int]], data: st.DataObject
) -> None:
    launch, pages = given_
    usages = hugetlb_usages(launch)
    more = {spot: count + data.draw(st.integers(0, 60)) for spot, count in pages.items()}
    before, after = (judge_fit(usages, exactly(stock)).fit for stock in (pages, more))
    assert RANK[after] >= RANK[before]


@given(launches())
def test_what_is_needed_fits_and_one_page_less_never_does(launch: Launch) -> None:
    usages = hugetlb_usages(launch)
    needs = judge_fit(usages, {}).needs
    assert judge_fit(usages, exactly(needs)).fit is Fit.FITS
    for spot, count in needs.items():
        if count:
            assert judge_fit(usages, exactly({**needs, spot: count - 1})).fit is not Fit.FITS


@given(launches_with_pages(), st.lists(st.integers(0, 2), max_size=40))
def test_a_verdict_holds_in_every_order_of_the_ranks(
    given_: tuple[Launch, dict[Spot, int]], turns: list[int]
) -> None:
    launch, pages = given_
    assume(not fails_for_another_reason(launch))
    fit = judge_fit(hugetlb_usages(launch), exactly(pages)).fit
    order = [turn % len(launch.processes) for turn in turns]
    processes = replay(launch, StockedPools(pages), order)
    outcomes = [a.outcome for process in processes for a in process.allocations]
    if fit is Fit.FITS:
        assert set(outcomes) <= {Outcome.TAKEN}
    if fit is Fit.FALLS_BACK:
        assert Outcome.FAILED not in outcomes


@st.composite
def lone_processes(draw: st.DrawFn) -> Launch:
    """One process on one node, with one store client and huge pages of one size."""
    protocol = draw(st.sampled_from(list(Protocol)))
    client = StoreClient(draw(sizes), draw(sizes), protocol)
    settings_ = StoreSettings(True, 2 * MIB, draw(st.none() | sizes.filter(bool)))
    pools = tuple(draw(st.lists(sizes.filter(bool), max_size=2)))
    mooncake = draw(st.sampled_from(RELEASES))
    return Launch((MappedProcess("rank 0", settings_, pools, (client,)),), mooncake)


@given(lone_processes())
def test_a_lone_process_is_judged_as_it_runs(launch: Launch) -> None:
    """With one process there is no order to promise over: the verdict is what happens."""
    assume(not fails_for_another_reason(launch))
    usages = hugetlb_usages(launch)
    spot = Spot(2 * MIB, None)
    for count in range(judge_fit(usages, {}).needs.get(spot, 0) + 2):
        (ran,) = replay(launch, StockedPools({spot: count}))
        fell_back = any(a.outcome is Outcome.FELL_BACK for a in ran.allocations)
        happens = Fit.FAILS if ran.failure else Fit.FALLS_BACK if fell_back else Fit.FITS
        assert judge_fit(usages, exactly({spot: count})).fit is happens


@given(launches())
def test_totals_are_sums_of_rounded_allocations(launch: Launch) -> None:
    for process in replay_endless(launch):
        for a in process.allocations:
            if a.backing not in (Backing.ARENA, Backing.NONE):
                assert a.pages == round_up(a.bytes, a.page_size_bytes) // a.page_size_bytes
            if a.backing is Backing.REGULAR:
                assert a.page_size_bytes == REGULAR_PAGE_BYTES
    needs = judge_fit(hugetlb_usages(launch), {}).needs
    for spot, count in needs.items():
        if spot.node is None:
            taken = [pages_by_spot(process.allocations) for process in replay_endless(launch)]
            assert count == sum(
                pages
                for process in taken
                for at, pages in process.items()
                if at.page_size_bytes == spot.page_size_bytes
            )


def test_a_pool_that_starts_by_luck_is_no_pass_and_one_that_starts_for_certain_no_fail() -> None:
    """Two ranks map 10 pages each, or an arena of 50: 49 pages start both, 55 kill the second. With
    fewer than 50 no arena is ever mapped, in any order."""
    client = StoreClient(16 * MIB, 4 * MIB, Protocol.TCP)
    settings_ = StoreSettings(True, 2 * MIB, 100 * MIB)
    ranks = tuple(MappedProcess(f"rank {rank}", settings_, (), (client,)) for rank in range(2))
    launch = Launch(ranks, RELEASES[-1])
    usages = hugetlb_usages(launch)
    spot = Spot(2 * MIB, None)

    def starts(pages: int) -> bool:
        return not any(process.failure for process in replay(launch, StockedPools({spot: pages})))

    def fit(pages: int) -> Fit:
        return judge_fit(usages, exactly({spot: pages})).fit

    assert [starts(pages) for pages in (19, 20, 49, 50, 55, 59, 60)] == [
        *(False, True, True, False, False, False, True)
    ]
    assert [fit(pages) for pages in (19, 50, 55, 59)] == [Fit.FAILS] * 4
    assert [fit(pages) for pages in (20, 49, 60, 99)] == [Fit.FALLS_BACK] * 4
    assert fit(100) is Fit.FITS
