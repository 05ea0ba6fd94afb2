"""Variables that nothing sets, and where alone each can be set."""

from typing import Literal, NamedTuple


class Inside(NamedTuple):
    """Where alone something is known that a text leaves open: no variable of the caller gives it.

    kind: of a shell the ``run`` of a container, ``service`` of Compose, ``pod``, or ``remote``:
    what ssh or ``docker exec`` runs; ``operator``: variables that the operator of a pod sets;
    ``program``: a name that a program itself computes. what: which of them.
    """

    kind: Literal["run", "service", "pod", "remote", "operator", "program"]
    what: str


class OpenVariable(NamedTuple):
    """A variable that nothing sets; ``inside``: where alone it can be set, None for anywhere."""

    name: str
    inside: Inside | None = None
