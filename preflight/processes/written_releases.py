"""Which releases a launch itself names, and the options with those that nothing else gives."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from checks.releases.mooncake import mooncake_release
from checks.releases.sglang import older_than_known, sglang_release
from preflight.launches.source import Origin, Reading
from preflight.processes.image_releases import IMAGE, pip_pins, stated_releases
from preflight.processes.processes import LaunchOptions, ProcessKind, classify
from preflight.processes.unread import NotRead

_KNOWN = {"sglang": sglang_release, "mooncake": mooncake_release}
_SERVERS = (ProcessKind.SGLANG, ProcessKind.DYNAMO_SGLANG)


class WrittenVersion(NamedTuple):
    """A release that a launch names. product: sglang or mooncake. by: what names it."""

    product: str
    version: str
    by: str
    at: Origin

    @property
    def origin(self) -> str:
        return f"{self.by} at {self.at}"


def written_versions(reading: Reading) -> dict[str, WrittenVersion]:
    """Return the release of each product that a launch names only one of."""
    by_product: dict[str, dict[str, WrittenVersion]] = {}
    for each in _named(reading):
        try:
            _KNOWN[each.product](each.version)
        except ValueError:
            continue
        by_product.setdefault(each.product, {}).setdefault(each.version, each)
    pairs = ((product, [*versions.values()]) for product, versions in by_product.items())
    return {product: named[0] for product, named in pairs if len(named) == 1}


def written_too_old(options: LaunchOptions, reading: Reading) -> tuple[NotRead, ...]:
    """Return the SGLang that the launch names and no row has, unless another one is given."""
    reasons: dict[str, NotRead] = {}
    for each in _named(reading) if options.sglang_version is None else ():
        if each.product == "sglang" and (why := older_than_known(each.version)):
            reasons.setdefault(each.version, NotRead(each.by, why, each.at))
    return tuple(reasons.values())


def with_written_versions(options: LaunchOptions, reading: Reading) -> LaunchOptions:
    """Return the options with the releases that the launch names, under those that were given."""
    named = {f"{product}_version": named for product, named in written_versions(reading).items()}
    named = {option: each for option, each in named.items() if getattr(options, option) is None}
    origins = {**options.origins, **{option: each.origin for option, each in named.items()}}
    versions: dict[str, Any] = {option: each.version for option, each in named.items()}
    return options._replace(origins=origins, **versions)


def _named(reading: Reading) -> Iterator[WrittenVersion]:
    """Yield the releases that images, labels and pip installs of a launch name."""
    stated = [stated_releases(command.container) for command in reading.commands]
    serves = [classify(command)[0] in _SERVERS for command in reading.commands]
    # The SGLang of a router's image is not the one that a server's has.
    of_servers = [each for each, is_server in zip(stated, serves, strict=True) if is_server]
    # The Mooncake of a master's image is not the one that an SGLang's image has.
    said_by = {"sglang": of_servers or stated, "mooncake": stated}
    products = [name for name in _KNOWN if all(name in each for each in said_by[name])]
    for command, releases, is_server in zip(reading.commands, stated, serves, strict=True):
        container = command.container
        for product in products:
            named = releases.get(product)
            counts = is_server or product != "sglang" or not of_servers
            if container is not None and named is not None and counts:
                by = f"image {container.image}" if named.by == IMAGE else named.by
                yield WrittenVersion(product, named.release, by, command.origin)
        for product, release, word in pip_pins(command):
            if product in _KNOWN:
                yield WrittenVersion(product, release, word.text, word.origin)
