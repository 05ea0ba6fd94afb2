"""Facts read by a pattern: of a file's text, or of a call's answer, which may be recorded.

Whatever does not have the pattern is Unknown, with the reason that stands beside the pattern.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from checks.framework.unknown import Unknown, or_unknown, require

T = TypeVar("T")
# What reading a field of a damaged record raises.
_DAMAGED = (TypeError, KeyError, ValueError, AttributeError, IndexError)
_SHOWN_CHARACTERS = 40
MOST_ERRNO = 4096  # include/linux/err.h, MAX_ERRNO


@or_unknown
def matched(
    content: str | Unknown, pattern: str, make: Callable[..., T], wrong: str
) -> T | Unknown:
    """Apply ``make`` to the groups of a regular expression, whose ``^`` and ``$`` are those of a
    line, and return the result.

    Returns:
        Unknown if the text is, or if it has no match: then ``wrong`` is the reason, which shows
        where the text begins if ``wrong`` ends with a colon.
    """
    text = require(content)
    match = re.search(pattern, text, re.MULTILINE | re.ASCII)
    if match is not None:
        return make(*match.groups())
    shown = f" {text.strip()[:_SHOWN_CHARACTERS]!r}" if wrong.endswith(":") else ""
    return Unknown(f"{wrong}{shown}")


@or_unknown
def answered(answer: Any | Unknown, take: Callable[[Any], T], wrong: str) -> T | Unknown:
    """Apply ``take`` to a call's answer, and return the result.

    Returns:
        Unknown if the answer is, or if ``take`` raises the error of a damaged record: then
        ``wrong`` is the reason.
    """
    try:
        return take(require(answer))
    except _DAMAGED:
        return Unknown(wrong)


def count_of(value: object, below: int = 1 << 64) -> int:
    """Return a whole number from 0 on.

    Raises:
        TypeError: For anything else.
        ValueError: For anything else.
    """
    if not 0 <= (count := of(int, value)) < below:
        raise ValueError(f"{count} is no count below {below}")
    return count


def of(wanted: type[T], value: object) -> T:
    """Return a value of plain data that is of this type.

    Raises:
        TypeError: For any other.
    """
    if type(value) is not wanted:
        raise TypeError(f"{value!r} is no {wanted.__name__}")
    return value
