"""What is written to each tier and read from it while so many new tokens a second are computed."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from preflight.capacity.deployment import DEFAULT_WRITE_POLICY, Bounds, Deployment, Round, Tier
from preflight.capacity.tiers import PageObjects
from preflight.processes.processes import LaunchProcess
from preflight.rules.tier_use import BUCKET_BYTES, lossy_bucket, part_that_reaches_ssd


class SsdStream(NamedTuple):
    """Tokens a second with which the buckets of all clients fill in a heartbeat; 0: none is lost.

    token_bytes: of the store's objects of one token.
    """

    filling: int
    token_bytes: int

    def part(self, speed: float) -> float:
        """Return the part, 0 to 1, of ``speed`` tokens per second that reaches SSD."""
        return part_that_reaches_ssd(self.filling, speed) if self.filling else 1.0


def ssd_stream(
    processes: tuple[LaunchProcess, ...],
    counts: Mapping[str, int],
    objects: PageObjects,
    mooncake: MooncakeRelease,
) -> SsdStream:
    """Return the tokens a second that fill the offload buckets of all SSD clients in a heartbeat.

    That decides how much this release of Mooncake loses; 0 if it loses nothing. The first
    client that can lose objects gives the bucket size and the heartbeat for all.
    """
    found = [(process.name, lossy_bucket(process, mooncake)) for process in processes]
    clients = sum(counts.get(name, 1) for name, bucket in found if bucket)
    for keys, seconds in [bucket for _, bucket in found if bucket][:1]:
        bucket = min(keys, BUCKET_BYTES * len(objects.whole) // sum(objects.whole)) * clients
        filling = int(bucket / seconds / len(objects.whole) * objects.page_tokens)
        return SsdStream(filling, objects.token_bytes)
    return SsdStream(0, objects.token_bytes)


def lost_note(ssd: SsdStream | None) -> Iterator[str]:
    """Yield how much reaches SSD at two speeds, if tokens that fill no bucket are lost."""
    if ssd is None or not ssd.filling:
        return
    rate = ssd.filling
    half, little = (
        format_bytes(int(rate * part * ssd.part(rate * part) * ssd.token_bytes * 3600))
        for part in (1, 0.1)
    )
    yield (
        f"SSD gets half of what comes at {rate:,} new tokens a second ({half} an hour), "
        f"a twentieth at {rate // 10:,} ({little} an hour): what fills no bucket is lost "
        "(ssd-bucket-lost)"
    )


def with_rates(
    deployment: Deployment,
    tiers: tuple[Tier, ...],
    rounds: tuple[Round, ...],
    speed: float,
    ssd: SsdStream | None,
    evicted_alone: bool,
) -> Iterator[Tier]:
    """Yield the tiers with the bytes per second written to each, and read in the last round."""
    release, policy = deployment.given.release, deployment.write_policy
    last = rounds[-1] if rounds else None
    cumulative = {name: (low, high) for name, low, high in last.hits} if last else {}
    below, above = 0.0, 0.0
    least = most = speed
    for tier in tiers:
        each = ssd.token_bytes if ssd and tier.name == "SSD" else _token_bytes(tier)
        if tier.name != "L1" and policy != DEFAULT_WRITE_POLICY:
            least = 0.0
            if tier.name == "L3" and policy == "write_back" and not release.write_back_stores:
                most = 0.0
        if tier.name == "SSD" and ssd is not None:
            most = most * ssd.part(most) if most else 0.0
            least = 0.0 if evicted_alone else least * ssd.part(least) if least else 0.0
        read: Bounds | None = None
        low, high = cumulative.get(tier.name, (0.0, 0.0))
        if last is not None and each is not None and tier.name != "L1":
            again = speed * last.reusable_tokens / max(1, last.held_tokens - last.reusable_tokens)
            parts = max(0.0, low - above), max(0.0, high - below)
            read = Bounds(*(int(again * part * each) for part in parts))
        below, above = low, high
        written = None if each is None else Bounds(int(least * each), int(most * each))
        yield tier._replace(written=written, read=read)


def _token_bytes(tier: Tier) -> float | None:
    """Return the bytes of a token in a tier; None if either is not known."""
    if isinstance(tier.bytes, Unknown) or isinstance(tier.tokens, Unknown) or not tier.tokens.most:
        return None
    return tier.bytes.most / tier.tokens.most


def rate_sentence(tier: Tier, speed: float) -> str:
    """Say at which rate a tier is written and read, and how soon it is full."""
    if tier.written is None:
        return f"{tier.name} at {speed:,g} new tokens a second: not known"
    hour, size = tier.written.most * 3600, tier.bytes
    fills = f"at most {format_bytes(hour)} fill in an hour"
    if not hour:
        fills = "nothing ever fills"
    elif isinstance(size, Bounds) and hour < size.least:
        fills = f"of {format_bytes(size.least)} {fills}"
    elif isinstance(size, Bounds):
        fills = f"{format_bytes(size.most)} fill in {size.most / tier.written.most / 60:.1f} min"
    rate = tier.written.text(format_bytes)
    read = "" if tier.read is None else f"; {tier.read.text(format_bytes)}/s read in the last round"
    return f"{tier.name} at {speed:,g} new tokens a second: {rate}/s written, {fills}{read}"
