"""Which releases of which products a launch names: of a container, or by pip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from checks.framework.regex import regex
from preflight.base.program import data_file
from preflight.engines.consumers.consumer import NamedRelease
from preflight.launches.container import ContainerSettings
from preflight.launches.source import Command, Word

# What mirrors and forks of an image keep is its own name and tag: the registry is not looked at.
# cu129, -dev and others behind the release are of the same one; a digest or latest says nothing.
# Enroot's files have + in place of / and :, and cluster files name such a one ``sglang-v0.5.9``.
_IMAGE = regex(
    r"(?:^|[/+#])(?P<name>(?:lmcache/)?vllm-openai(?:-rocm)?|lmcache/[a-z-]+|sglang(?:-rocm)?"
    r"|mooncake|ai-dynamo[/-][a-z-]+-runtime)"
    r"(?::|\+|-(?=v\d))v?(?P<release>\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?:[-@+]|\.sqsh|$)"
)
# What other images have in their tag: ``0.3.7.post2-sglang0.5.5.post3``, ``x_mooncake_v0.3.5``.
_TAGGED = regex(
    r"(?:^|[-_])(?P<name>sglang|vllm|lmcache|mooncake)[-_]?v?"
    r"(?P<release>\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?=[-_+]|$)"
)
# A day behind the release or alone: built that night from what came after the last release.
_NIGHTLY = regex(r"-20\d{6}(?=[-@.]|$)")
_OF_SGLANG = regex(r"(?:^|/)sglang(?:-rocm)?:(?:.*-)?(20\d\d)(\d\d)(\d\d)(?=[-@.]|$)")
_UNRELEASED = regex(r":(?:.*-)?(?:nightly|dev)(?=[-@]|$)|-20\d{6}(?=[-@.]|$)")
# A preview of a Dynamo that has other engines, ``1.3.0-glm-5.2-dev.1``.
_PREVIEW = regex(r"-dev\.\d+")
IMAGE = "its image"
_PINNED = regex(
    r"(sglang|vllm|lmcache|mooncake-transfer-engine(?:-[a-z0-9-]+)?)(?:\[[^\]]*\])?"
    r"==(\d+\.\d+\.\d+(?:\.?(?:post|rc|dev|a|b)\d+)?)"
)
_PIP = frozenset(("pip", "pip3", "uv", "uvx"))
_PRODUCTS = {
    "sglang": "sglang",
    "sglang-rocm": "sglang",
    "vllm-openai": "vllm",
    "vllm-openai-rocm": "vllm",
    "mooncake": "mooncake",
}


@cache
def _engines_of_dynamo() -> Mapping[str, tuple[str, str]]:
    """Return (release of vLLM, release of SGLang) in Dynamo's images, by the release of Dynamo."""
    with open(data_file("dynamo_releases.txt"), encoding="ascii") as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    return {release: (vllm, sglang) for vllm, sglang, *releases in rows for release in releases}


@cache
def sglang_dates() -> dict[str, str]:
    """Return the day of each release of SGLang (``2026-10-30``), the oldest first."""
    with open(data_file("sglang_dates.txt"), encoding="ascii") as file:
        return dict(line.split() for line in file if not line.startswith("#"))


def image_releases(image: str) -> Mapping[str, str]:
    """Return product -> release as an image's name tells: sglang, vllm, lmcache, mooncake, dynamo.

    A nightly image of SGLang has the release that was the last on its day, and more, as
    ``0.5.16+nightly``; another nightly image tells nothing.

    Returns:
        Empty for a name without a release.
    """
    if day := _OF_SGLANG.search(image):
        night = "-".join(day.groups())
        earlier = [release for release, date in sglang_dates().items() if date < night]
        return {"sglang": f"{earlier[-1]}+nightly"} if earlier else {}
    if _NIGHTLY.search(image):
        return {}
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    tagged = {match["name"]: match["release"] for match in _TAGGED.finditer(tag)}
    match = _IMAGE.search(image)
    if match is None:
        return tagged
    name, release = match["name"], match["release"]
    if name in _PRODUCTS:
        return {**tagged, _PRODUCTS[name]: release}
    if name.startswith("lmcache/"):
        return {**tagged, "lmcache": release}
    vllm, sglang = (
        ("", "") if _PREVIEW.search(image) else _engines_of_dynamo().get(release, ("", ""))
    )
    engine = {"vllm": vllm} if name.endswith("vllm-runtime") else {"sglang": sglang}
    known = name.endswith(("vllm-runtime", "sglang-runtime")) and vllm
    return {"dynamo": release, **(engine if known else {})}


def is_unreleased(container: ContainerSettings | None) -> bool:
    """Tell whether the tag of a container's image is of a night or a development build, which may
    have what no release before it has.

    Not so where a release is in the tag, as ``v0.5.9-dev``.
    """
    image = "" if container is None else container.image
    releases = [each for each in image_releases(image).values() if "+nightly" not in each]
    return not releases and _UNRELEASED.search(image) is not None


def stated_releases(container: ContainerSettings | None) -> dict[str, NamedRelease]:
    """Return the releases that a launch says a container has, by product: as its settings say, or
    else its image's name.

    Returns:
        {} without a container.
    """
    if container is None:
        return {}
    by_image = image_releases(container.image)
    return {product: NamedRelease(release, IMAGE) for product, release in by_image.items()} | {
        product: NamedRelease(release, "its launch")
        for product, release in container.releases.items()
    }


def pip_pins(command: Command) -> Iterator[tuple[str, str, Word]]:
    """Yield (product, release, word) of each release that pip installs, of sglang, vllm, lmcache or
    mooncake.
    """
    texts = [word.text for word in command.words]
    names = {text.rpartition("/")[2] for text in texts[:4]}
    if "install" not in texts or not names & _PIP:
        return
    for word in command.words:
        match = _PINNED.fullmatch(word.text)
        if match is not None:
            product, release = match.groups()
            yield "mooncake" if product.startswith("mooncake") else product, release, word


def named_releases(command: Command, commands: Iterable[Command]) -> Mapping[str, NamedRelease]:
    """Return product -> release for a command, as its container or pip names it; pip goes first.

    Args:
        commands: Of the whole launch, in which pip installs for an equal container are looked for.
            A product that pip pins to different releases is left to the container.
    """
    releases = stated_releases(command.container)
    pins: dict[str, set[str]] = {}
    for each in commands:
        if each.container == command.container:
            for product, release, _ in pip_pins(each):
                pins.setdefault(product, set()).add(release)
    single = {name: pinned for name, pinned in pins.items() if len(pinned) == 1}
    return releases | {name: NamedRelease(next(iter(pin)), "pip") for name, pin in single.items()}
