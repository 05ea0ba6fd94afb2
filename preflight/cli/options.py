"""The options that commands share, the types of their values, and groups as one record each."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from checks.framework.units import bare_number, parse_size
from preflight.base.within import GIVEN_SECONDS, HAS_TIMEOUT, LIMIT_SECONDS, limit_seconds, within
from preflight.cli.commands import JSON as JSON
from preflight.cli.commands import AnyParamType as AnyParamType
from preflight.cli.commands import Decorator, FileName, Option, taking

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords

Parameter = click.Parameter | None
Context = click.Context | None


FILE = FileName()
MEASURED = click.option(
    "--measured", type=FILE, metavar="FILE", help="Hold it against what measure --save wrote, too."
)


class NumberOption(click.FloatRange):
    """A number in a range.

    The message about another text says "number", not click's "float range"; ``nan`` is refused too.
    """

    name = "number"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class Integer(click.IntRange):
    """An integer in a range; the message about another text calls it "integer", not a range."""

    name = "integer"


class Fraction(AnyParamType):
    """``60%`` or ``0.6``, as a part of 1."""

    name = "part"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Return the part, above 0 and at most 1; anything else is refused."""
        text = str(value).strip()
        try:
            part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            part = -1.0
        if not 0 < part <= 1:
            self.fail(f"{value!r} is not a part of all: write 60% or 0.6", param, ctx)
        return part


class Size(AnyParamType):
    """A byte size.

    A bare number is refused, except with --rule documented.

    Args:
        least_bytes: A smaller size is refused.
        empty: An empty text gives None; without it that is refused.
    """

    name = "size"

    def __init__(self, least_bytes: int = 0, empty: bool = False) -> None:
        self._least_bytes, self._empty = least_bytes, empty

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int | None:
        """Return a size in bytes, None for an empty text that is allowed; a size without a unit or
        too small is refused.
        """
        if isinstance(value, int):
            return value
        if self._empty and not value:
            return None
        helper = ctx is not None and ctx.params.get("rule") == "documented"
        try:
            size = parse_size(value, bare_bytes=helper)
        except ValueError as error:
            self.fail(_with_sglang_spelling(str(error), value, param), param, ctx)
        if size < self._least_bytes:
            self.fail(f"{value!r} is no memory: give the size, such as 80gb", param, ctx)
        return size


def _with_sglang_spelling(message: str, value: str, param: click.Parameter | None) -> str:
    """Add to a message how SGLang reads a bare --hicache-size: in units of 10^9 bytes.

    The message of another option is returned as it is.
    """
    number = value.strip()
    bare = number.isascii() and number.isdecimal() and len(number) <= 9
    if not bare or param is None or param.name != "hicache_bytes":
        return message
    return (
        f"{bare_number(value, number)}. SGLang's own --hicache-size {number} is {number} x 10^9 "
        f"bytes: write {int(number) * 10**9}b for that"
    )


class Nodes(AnyParamType):
    """NUMA nodes: ``0,1``, ``0-3`` or ``none``.

    ``repeats`` keeps order and repetitions.
    """

    name = "nodes"

    def __init__(self, repeats: bool = False) -> None:
        self._repeats = repeats

    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[int, ...]:
        """Return the NUMA nodes of a list; ``none`` is the empty list."""
        from checks.numa.nodes import parse_node_list

        if isinstance(value, tuple):
            return value
        if value.strip().lower() == "none":
            return ()
        try:
            if not self._repeats:
                return parse_node_list(value)
            return tuple(number for part in value.split(",") for number in parse_node_list(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of NUMA nodes: write 0,1 or none", param, ctx)


SIZE = Size()


_TYPED = click.core.ParameterSource.COMMANDLINE


COLOR: Option = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
    help="Colour the text: auto does on a terminal.",
)  # fmt: skip
ROOT: Option = click.option(
    "--root", "--host", "root", type=FILE, metavar="HOST", default="/", show_default=True,
    help="The host: /, a folder like it, a capture, demo:h800 (made), or a TOML file of its words.",
)  # fmt: skip


def timeout_option(
    type_: NumberOption, default: float, help_: str, for_files_alone: bool = False
) -> Option:
    """Return the option ``--timeout``, as ``timeout_seconds``; it limits how long the command waits
    for any file.

    Args:
        for_files_alone: It only does that, and the command gets no such parameter.
    """
    return click.option(
        "--timeout", "timeout_seconds", type=type_, default=default, show_default=True,
        help=help_, expose_value=not for_files_alone, callback=_limit_reading,
    )  # fmt: skip


def _limit_reading(context: click.Context, option: click.Parameter, seconds: float) -> float:
    """Let a --timeout that was typed limit the reading of files until the command ends."""
    typed = context.get_parameter_source(option.name or "") == _TYPED
    here, typed_seconds = HAS_TIMEOUT.set(True), GIVEN_SECONDS.set(seconds if typed else None)
    context.call_on_close(lambda: HAS_TIMEOUT.reset(here))
    context.call_on_close(lambda: GIVEN_SECONDS.reset(typed_seconds))
    return seconds


_TIME, _GIVEN_UP = NumberOption(0, 3600, min_open=True), "a file that does not answer is given up."
TIMEOUT = timeout_option(_TIME, LIMIT_SECONDS, "Seconds after which what was not read is unknown.")
FILE_TIMEOUT = timeout_option(_TIME, LIMIT_SECONDS, f"Seconds after which {_GIVEN_UP}", True)

NIC_NODES: Option = click.option(
    "--nic-numa-nodes", "nic_nodes", type=Nodes(),
    help="NUMA nodes of the NICs in use, as 0,1, or none. Default: this host's.",
)  # fmt: skip
RANK_NODES: Option = click.option(
    "--rank-numa-nodes", "rank_nodes", type=Nodes(repeats=True),
    help="The node that each rank is bound to, as 0,0,1,1, or none. Default: its GPU's.",
)  # fmt: skip


def _given(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse an empty version, which is a variable without a value: it names no release."""
    if text is not None and not text.strip():
        raise click.UsageError(f"{option.opts[0]} '': give a version, or leave the option out")
    return text


MOONCAKE_VERSION: Option = click.option(
    "--mooncake-version", callback=_given, metavar="VERSION",
    help="The launch's Mooncake, as 0.3.13.post1, where another one is installed here. Default: "
    "the installed one.",
)  # fmt: skip
# What is said of a launch alone, in the order in which --help shows it.
LAUNCH_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--sglang-version", callback=_given, metavar="VERSION",
        help="The launch's SGLang, where nothing of the launch says it. Default: 0.5.23.",
    ),
    click.option(
        "--model-config", type=FILE, metavar="FILE",
        help="The model's config.json, where no model folder or cache here has it.",
    ),
    click.option(
        "--gpu-memory", "gpu_bytes", type=Size(least_bytes=1),
        help="Memory of the launch's smallest GPU, for --hicache-ratio. Default: this host's.",
    ),
    click.option(
        "--host-group", metavar="GROUP",
        help="Which of the launch's hosts this one is, where it is for several; read lists them.",
    ),
    click.option(
        "--env-file", "env_files", type=FILE, metavar="FILE", multiple=True,
        help="More environment for a launch, in docker's form; may be given again.",
    ),
)  # fmt: skip


def _named_host(root: str, **options: Any) -> str:
    """Return ``root``, or the host that ``options`` describe, as ``open_host`` takes it."""
    if all(text is None for text in options.values()):
        return root
    from preflight.cli.named_inputs import root_of_description

    return root_of_description(root, **options)


def _host_and_assumptions(**options: Any) -> str:
    """Return the named or described host; print on standard error what a description assumes."""
    from checks.host_snapshot.root_names import is_description

    root = _named_host(**options)
    if is_description(root):
        from preflight.cli.named_inputs import tell_assumptions

        tell_assumptions(root)
    return root


_DESCRIBED: tuple[Option, ...] = (
    ROOT,
    click.option("--memory", type=SIZE, help="All memory of a described host, as 2tb."),
    click.option("--gpus", metavar="GPUS", help="Its GPUs, as 8xH800 or 8x288gb."),
    click.option("--nics", metavar="NICS", help="Its NICs, as 8xmlx5 or 2xerdma."),
    click.option("--numa", type=Integer(1, 64), help="Its NUMA nodes. Default: 1."),
)
# The host, which may be described in words: ``root``, as ``open_host`` takes it.
with_described_host = taking("root", _named_host, *_DESCRIBED)
# The same, and what is assumed of a described host is said.
with_host = taking("root", _host_and_assumptions, *_DESCRIBED)


def _launch_words(launch: tuple[str, ...], model_config: str | None, **options: Any) -> LaunchWords:
    """Return the launch of the command line.

    Each stream ("-") and the file ``model_config`` are read here, once.

    Raises:
        UsageError: If one cannot be read.
    """
    from preflight.command_inputs.launch_words import LaunchWords

    if model_config is not None:
        from preflight.cli.named_inputs import config_text

        model_config = config_text(model_config)
    for stream in (word for word in launch if launch == ("-",) or word.startswith("/dev/fd/")):
        from preflight.launches.env_files import read_stream

        # Here, once: what reads the launch may be another process, or read it twice.
        called = "standard input" if stream == "-" else stream
        within(limit_seconds(), called, partial(read_stream, stream))
    return LaunchWords(launch, model_config=model_config, **options)


LAUNCH: Option = click.argument("launch", nargs=-1, type=FILE)


def launch_from(source: Option, *options: Option) -> Decorator:
    """Add the launch with the options that describe it: ``launch: LaunchWords``.

    Args:
        source: The option or argument that names the launch.
    """
    return taking("launch", _launch_words, source, NIC_NODES, RANK_NODES, *options, *LAUNCH_OPTIONS)


with_launch = launch_from(LAUNCH, MOONCAKE_VERSION)
# The same without its Mooncake release, which the installed one says itself.
with_launch_of_installed = launch_from(LAUNCH)
# The numbers of a workload: ``numbers: WorkloadOptions``.
with_workload = taking(
    "numbers",
    "preflight.cache_sizing.capacity.workload:WorkloadOptions",
    click.option("--clients", type=int, help="Conversations at once."),
    click.option("--rounds", type=int, help="Questions of each conversation."),
    click.option("--request-length", type=int, help="Tokens of a question."),
    click.option("--output-length", type=int, help="Tokens of an answer. Default: 1."),
)


def with_verbosity(verbose: str) -> Decorator:
    """Add -q and -v as ``verbosity``: how many -v, less how many -q.

    Args:
        verbose: The help of -v.
    """
    return taking(
        "verbosity",
        lambda quiet, verbose: verbose - quiet,
        click.option("-q", "--quiet", count=True, help="Print only the verdict."),
        click.option("-v", "--verbose", count=True, help=verbose),
    )
