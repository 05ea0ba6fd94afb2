"""The words of the command line that describe a host, and what is assumed of it."""

from checks.capture.described import Description
from preflight.base.output import columns, say
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds
from preflight.inputs.host_source import open_host
from preflight.render.text import wrapped


def described(root: str, memory: int | None, **words: str | int | None) -> str:
    """Return the host that the options describe, as ``--root`` takes it; a second one is refused.

    memory: in bytes.
    """
    if root != "/":
        raise UsageError(
            f"--root {root} is a host, and --memory, --gpus, --nics and --numa describe "
            "another: give the one or the other"
        )
    size = None
    if memory is not None:
        size = f"{memory}b" if memory % (1 << 30) else f"{memory >> 30}gb"
    description = {"memory": size, **words}
    known = {key: str(text) for key, text in description.items() if text is not None}
    return Description(**known).root


def tell_assumptions(root: str) -> None:
    """Say on standard error what is assumed of a host in words."""
    host = open_host(root, limit_seconds()).described
    assert host is not None
    text = f"assumed of the described host: {'; '.join(host.assumptions)}"
    say("\n".join(wrapped(text, columns(), 2)), err=True)
