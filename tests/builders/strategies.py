"""Launches for property tests: small in bytes, so that every kind of rounding shows."""

from hypothesis import strategies as st

from checks.releases.mooncake import RELEASES
from preflight.engines.programs.memory_records import (
    HotCache,
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
    StoreSettings,
)
from tests.builders.hosts import GIB, MIB

# Sizes around page boundaries matter most.
sizes = st.one_of(
    st.integers(0, 40 * MIB),
    st.builds(
        lambda pages, odd: max(0, pages * 2 * MIB + odd), st.integers(0, 20), st.integers(-1, 1)
    ),
)
nodes = st.integers(0, 2)


@st.composite
def settings(draw: st.DrawFn, *, hugepages: bool | None = None) -> StoreSettings:
    hot_cache = draw(
        st.none() | st.builds(HotCache, sizes, st.integers(1, 16 * MIB), st.just(True))
    )
    return StoreSettings(
        draw(st.booleans()) if hugepages is None else hugepages,
        draw(st.sampled_from([2 * MIB, GIB])),
        draw(st.none() | sizes.filter(bool)),
        draw(st.booleans()) and draw(st.booleans()),
        hot_cache,
    )


@st.composite
def processes(draw: st.DrawFn, name: str, shared: StoreSettings) -> MappedProcess:
    client = st.builds(
        StoreClient, sizes, sizes, st.sampled_from(list(Protocol)), st.none() | sizes, st.booleans()
    )
    return MappedProcess(
        name,
        shared,
        tuple(draw(st.lists(sizes.filter(bool), max_size=2))),
        tuple(draw(st.lists(client, max_size=2))),
        draw(st.none() | nodes),
    )


@st.composite
def launches(draw: st.DrawFn, *, hugepages: bool | None = None, most: int = 3) -> Launch:
    shared = draw(settings(hugepages=hugepages))
    count = draw(st.integers(1, most))
    return Launch(
        tuple(draw(processes(f"rank {rank}", shared)) for rank in range(count)),
        draw(st.sampled_from(RELEASES)),
        tuple(sorted(draw(st.sets(nodes)))),
        draw(st.sampled_from([2 * MIB, GIB])),
    )
