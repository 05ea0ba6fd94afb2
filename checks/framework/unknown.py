"""A fact that could not be read.

Three-valued truth rests on this type: a reader returns either the fact or an ``Unknown`` that says
why there is none. It is neither true nor false and has no order, so a rule that forgets it raises
instead of passing.
"""

from collections.abc import Callable
from functools import wraps
from typing import Literal, NamedTuple, NoReturn, ParamSpec, TypeVar


class Inside(NamedTuple):
    """The only place where a variable can get its value, if no variable of the caller gives it.

    run: a container's shell. service, pod: the variables of that container. remote: what ssh or
    ``docker exec`` runs. operator: variables that a pod's operator sets. cluster: ``valueFrom`` of
    Kubernetes. program: a name that a program itself computes.
    """

    kind: Literal["run", "service", "pod", "remote", "operator", "cluster", "program"]
    what: str  # which of them


class OpenVariable(NamedTuple):
    """A variable that nothing sets; ``inside``: where alone it can be set, None for anywhere."""

    name: str
    inside: Inside | None = None


# How a fact of a container is learned that its host does not show.
RUN_INSIDE = "run this check inside the container: what it gets is seen there"

# Codes of reasons: a value that its reader refuses, and that nothing fills in later; a fact that
# nobody asked the recorded host for.
REFUSED, NOT_RECORDED = "refused", "not recorded"

P = ParamSpec("P")
T = TypeVar("T")
N = TypeVar("N")


class Unknown:
    """Why a fact is missing; ``absent`` if the file does not exist, as opposed to unreadable.

    Args:
        cause: The reason alone, if ``reason`` begins with the fact's name.
        advice: A sentence on how to learn the fact, or "".
        sets: The variables that the advice asks to set.
        code: The reason for code to compare, or "": the error's name (EINVAL; see ``error_name``),
            REFUSED or NOT_RECORDED.
    """

    __slots__ = ("absent", "advice", "cause", "code", "reason", "sets")

    def __init__(
        self,
        reason: str,
        absent: bool = False,
        *,
        cause: str = "",
        advice: str = "",
        sets: tuple[OpenVariable, ...] = (),
        code: str = "",
    ) -> None:
        """Keep the arguments; ``cause`` is the same text as ``reason`` by default."""
        self.reason = reason
        self.absent = absent
        self.cause = cause or reason
        self.advice = advice
        self.sets = sets
        self.code = code

    def of(self, what: str) -> "Unknown":
        """Return a new Unknown with ``what`` in front of the reason.

        All else is the same, but ``absent`` is False.
        """
        rest = {name: getattr(self, name) for name in ("cause", "advice", "sets", "code")}
        return Unknown(f"{what}{self.reason}", **rest)

    def __repr__(self) -> str:
        return f"Unknown({self.reason!r}, absent={self.absent})"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an unknown fact is neither true nor false ({self.reason})")


class NoFile(Unknown):
    """The Unknown for the text of a folder: opening a folder as a file gives EISDIR."""

    __slots__ = ()


class _MissingError(Exception):
    """Carries ``fact``, with its reason as the message."""

    def __init__(self, fact: Unknown) -> None:
        super().__init__(fact.reason)
        self.fact = fact


class UnknownFactError(_MissingError):
    """A fact was needed and is Unknown; ``or_unknown`` and the runner of checks catch this."""


def require(fact: T | Unknown) -> T:
    """Return the fact; raise UnknownFactError if it could not be read."""
    if isinstance(fact, Unknown):
        raise UnknownFactError(fact)
    return fact


def none_if_absent(fact: T | Unknown, nothing: N) -> T | N | Unknown:
    """Return ``nothing`` if the fact is Unknown because its file does not exist.

    Else return the fact as it is, even if it is Unknown for another reason.
    """
    return nothing if isinstance(fact, Unknown) and fact.absent else fact


def or_unknown(function: Callable[P, T]) -> Callable[P, T | Unknown]:
    """Decorate a function: if ``require`` raises inside, the Unknown fact becomes the result."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T | Unknown:
        try:
            return function(*arguments, **named)
        except UnknownFactError as error:
            return error.fact

    return call


class UnreadTopicError(_MissingError):
    """A whole topic of facts was not read, and a field of it was asked for; ``fact`` says why."""


class UnreadTopic:
    """Stands for a topic that was not read: asking for any field raises UnreadTopicError."""

    def __init__(self, why: Unknown) -> None:
        self.__dict__["why"] = why

    def __getattr__(self, name: str) -> NoReturn:
        raise UnreadTopicError(self.__dict__["why"])


def must_be_read(topic: object) -> None:
    """Raise UnreadTopicError at once if a topic was not read, whatever is asked for later."""
    why = unread(topic)
    if why is not None:
        raise UnreadTopicError(why)


def unread(topic: object) -> Unknown | None:
    """Return why a topic was not read, None if it was read."""
    return topic.__dict__["why"] if isinstance(topic, UnreadTopic) else None
