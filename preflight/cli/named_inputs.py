"""What options name beside the launch: a host described in words, a model's config.json."""

import sys

from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within

# Characters of a config.json: those of published models have some thousands.
_LARGEST_CONFIG = 4 << 20


def root_of_description(root: str, memory: int | None, **options: str | int | None) -> str:
    """Return the host that the options describe, as text for ``--root``.

    At least one option must be given.

    Args:
        memory: In bytes.
        options: Gpus, nics and numa as typed; None for an option that is left out.

    Raises:
        UsageError: If ``root`` names a host too.
    """
    from checks.host_snapshot.described import Description

    if root != "/":
        raise UsageError(
            f"--root {root} is a host, and --memory, --gpus, --nics and --numa describe "
            "another: give the one or the other"
        )
    size = None
    if memory is not None:
        size = f"{memory}b" if memory % (1 << 30) else f"{memory >> 30}gb"
    description = {"memory": size, **options}
    return Description(
        **{key: str(text) for key, text in description.items() if text is not None}
    ).root


def tell_assumptions(root: str) -> None:
    """Say on standard error what is assumed of a host that ``root`` describes in words."""
    from preflight.base.output import columns, say
    from preflight.base.text import wrapped
    from preflight.command_inputs.host_source import open_host

    host = open_host(root, limit_seconds()).described_root
    assert host is not None
    text = f"assumed of the described host: {'; '.join(host.assumptions)}"
    say("\n".join(wrapped(text, columns(), 2)), err=True)


def config_text(path: str) -> str:
    """Return the text of --model-config, "-" for stdin, at most 4 MiB.

    Raises UsageError.
    """
    name = f"--model-config {path}"

    def read() -> str:
        file = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115
        with file:
            return file.read(_LARGEST_CONFIG + 1)

    try:
        text = within(limit_seconds(), name, read)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{name}: {why}: give a config.json") from None
    if len(text) > _LARGEST_CONFIG:
        raise UsageError(f"{name}: more than {_LARGEST_CONFIG >> 20} MiB: give a config.json")
    return text
