"""What the rules about launches share: the releases of a server, and names that are misspelt."""

from collections.abc import Iterable
from typing import NamedTuple

from checks.framework.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SglangRelease
from preflight.engines.sglang.model_geometry import ModelGeometry
from preflight.launches.source import Origin


class Versions(NamedTuple):
    """The model of a server, Unknown if it was not read, and the two releases that it runs."""

    geometry: ModelGeometry | Unknown
    sglang: SglangRelease
    mooncake: MooncakeRelease
    sglang_unsure: str = ""  # why the release may be another one; "" if it is certain
    mooncake_assumed: str = ""  # the same of Mooncake
    mooncake_newer: str = ""  # why it may behave like no known release


# A look-up among some hundred names takes 5 to 25 ms; who misspells more has another program.
MOST_LOOKED_UP = 24


class Spelling:
    """Finds the known name that a misspelt name most likely means, at most MOST_LOOKED_UP times."""

    def __init__(self, cutoff: float = 0.75) -> None:
        self._cutoff = cutoff
        self._left = MOST_LOOKED_UP

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """Return the name of ``known`` that is most like ``name``.

        Returns:
            None if no name is near, or after MOST_LOOKED_UP look-ups.
        """
        if not self._left:
            return None
        self._left -= 1
        import difflib

        near = difflib.get_close_matches(name, list(known), n=1, cutoff=self._cutoff)
        return near[0] if near else None


def replaced(where: Origin, old: str, new: str) -> str:
    """Return an edit as a sentence: the place, the new text, and the old text that it replaces."""
    return f"{at(where)} write {new} instead of {old}"


def at(where: Origin) -> str:
    """Return the place of an edit as the beginning of a sentence: ``in FILE:LINE``."""
    return "on the command line" if where.source == "command line" else f"in {where}"


# A letter of a shorter part makes another name: fp4 and fp8, dp and cp, nsa and dsa; so do two
# letters swapped in one of two: dp and pd.
_LEAST_LETTERS, _LEAST_SWAPPED = 4, 3


def is_misspelt(name: str, intended: str) -> bool:
    """Tell whether ``name`` is surely a wrong spelling of ``intended``, and not the name of a newer
    flag.

    The spelling is wrong if each part between dashes is equal or one letter off, or if only dashes,
    underscores or case differ. Of 414 flags that SGLang got after 0.5.2, one was so near to an
    older flag.
    """
    name, intended = (text.replace("_", "-").lower() for text in (name, intended))
    if name.replace("-", "") == intended.replace("-", ""):
        return True
    parts, others = name.split("-"), intended.split("-")
    return len(parts) == len(others) and all(map(_one_letter_off, parts, others))


def _one_letter_off(part: str, other: str) -> bool:
    """Tell whether two words are equal, or one letter is lost, added or changed, or two are
    swapped.

    Words of fewer than 4 letters (of 3, if two are swapped) must be equal.
    """
    same = 0
    while part[same : same + 1] == other[same : same + 1] != "":
        same += 1
    left, right = part[same:], other[same:]
    if len(right) > 1 and left == right[:2][::-1] + right[2:]:
        return len(part) >= _LEAST_SWAPPED
    long = min(len(part), len(other)) >= _LEAST_LETTERS
    return part == other or (long and (left[1:] in (right, right[1:]) or left == right[1:]))
