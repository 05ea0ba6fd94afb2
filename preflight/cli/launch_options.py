"""The launch on a command line: the argument itself, and the flags that say what it leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from preflight.cli.option_types import Number
from preflight.sizing.sizes import bare_number, parse_size

if TYPE_CHECKING:
    from preflight.inputs.host_source import LaunchWords

    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4

# Characters of a config.json: those of published models have some thousands.
_LARGEST_CONFIG = 4 << 20

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def examples(*lines: str) -> str:
    """The end of a command's help: lines to copy, which are not wrapped."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


class Size(AnyParamType):
    """A byte size in the documented grammar; a bare number is refused, with both spellings."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(_with_sglang_spelling(str(error), value, param), param, ctx)


def _with_sglang_spelling(message: str, value: str, param: click.Parameter | None) -> str:
    """A bare --hicache-size is SGLang's own spelling, and means 10^9 bytes there."""
    number = value.strip()
    bare = number.isascii() and number.isdecimal() and len(number) <= 9
    if not bare or param is None or param.name != "hicache_size":
        return message
    return (
        f"{bare_number(value, number)}. SGLang's own --hicache-size {number} is {number} x 10^9 "
        f"bytes: write {int(number) * 10**9}b for that"
    )


class Nodes(AnyParamType):
    """NUMA nodes: ``0,1``, ``0-3`` or ``none``. ``repeats`` keeps order and repetitions."""

    name = "nodes"

    def __init__(self, repeats: bool = False) -> None:
        self._repeats = repeats

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        from checks.numa.nodes import parse_node_list

        if isinstance(value, tuple):
            return value
        if value.strip().lower() == "none":
            return ()
        try:
            if not self._repeats:
                return parse_node_list(value)
            return tuple(node for part in value.split(",") for node in parse_node_list(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of NUMA nodes: write 0,1 or none", param, ctx)


SIZE = Size()

NIC_NODES: Option = click.option(
    "--nic-numa-nodes",
    type=Nodes(),
    help="NUMA nodes of the NICs in use, as 0,1, or none. Default: this host's.",
)
RANK_NODES: Option = click.option(
    "--rank-numa-nodes",
    type=Nodes(repeats=True),
    help="The node that each rank is bound to, as 0,0,1,1, or none. Default: its GPU's.",
)
MOONCAKE_VERSION: Option = click.option(
    "--mooncake-version", help="As 0.3.13.post1. Default: the installed one."
)
# What is said of a launch alone, in the order in which --help shows it.
LAUNCH_OPTIONS: tuple[Option, ...] = (
    click.option("--sglang-version", help="Of a launch, as 0.5.23, which is the default."),
    click.option(
        "--model-config", type=click.File(), help="A launch's config.json, where not found."
    ),
    click.option(
        "--gpu-memory",
        type=SIZE,
        help="Of a launch's smallest GPU, for --hicache-ratio. Default: this host's.",
    ),
    click.option(
        "--env-file",
        "env_files",
        multiple=True,
        help="More environment for a launch, in docker's form; may be given again.",
    ),
)
LAUNCH: Option = click.argument("launch", nargs=-1, type=click.UNPROCESSED)
COLOR: Option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the text.",
)


def with_options(function: Command, options: tuple[Option, ...]) -> Command:
    """Add ``options``, in the order in which --help is to show them."""
    for option in reversed(options):
        function = option(function)
    return function


ROOT: Option = click.option(
    "--root",
    default="/",
    show_default=True,
    help="The host: /, a folder laid out like one, or a capture.",
)
TIMEOUT: Option = click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(0, 3600, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds after which what was not read is unknown.",
)


def with_launch(function: Command) -> Command:
    """Add the launch, and what may be said of it beside its own words."""
    versions = (NIC_NODES, RANK_NODES, MOONCAKE_VERSION)
    return with_options(function, (*versions, *LAUNCH_OPTIONS, LAUNCH))


def launch_words(options: dict[str, Any]) -> LaunchWords:
    """The launch, of the options that ``with_launch`` adds."""
    from preflight.inputs.host_source import LaunchWords

    config = options["model_config"]
    return LaunchWords(
        options["launch"],
        options["env_files"],
        options["nic_numa_nodes"],
        options["rank_numa_nodes"],
        options["mooncake_version"],
        options["sglang_version"],
        config_text(config),
        options["gpu_memory"],
    )


def config_text(file: TextIO | None) -> str | None:
    """What ``--model-config`` names, within bounds: a device has no end, and a model no text."""
    if file is None:
        return None
    try:
        text = file.read(_LARGEST_CONFIG + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise click.UsageError(f"--model-config {file.name}: {why}: give a config.json") from None
    if len(text) > _LARGEST_CONFIG:
        raise click.UsageError(
            f"--model-config {file.name}: more than {_LARGEST_CONFIG >> 20} MiB: give a config.json"
        )
    return text


def refusing_usage(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the user can mend is a usage error, with the command that it is about."""
    from preflight.base.usage_error import UsageError

    try:
        return function(*arguments)
    except UsageError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
