"""The options that commands share, whole groups of them, and the types of their values.

A group that belongs together is handed over as one record: a command's parameters are its request.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checks.base.units import bare_number, parse_size
from preflight.base.usage_error import UsageError
from preflight.base.within import GIVEN_SECONDS, HAS_TIMEOUT, LIMIT_SECONDS, limit_seconds, within
from preflight.cli.formats import JSON as JSON
from preflight.cli.formats import AnyParamType as AnyParamType
from preflight.cli.formats import FileName

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from preflight.inputs.launch_words import Chosen, LaunchWords

Parameter = click.Parameter | None
Context = click.Context | None


class CheckId(FileName):
    """The id of a check or rule, or a pattern; ``or_file``: or a file's name."""

    name = "id"

    def __init__(self, or_file: bool = False) -> None:
        self._or_file = or_file

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the ids, or else the files, that a word may become."""
        from click.shell_completion import CompletionItem

        from preflight.check.catalogue import catalogue

        items = [CompletionItem(id_) for id_ in catalogue().ids if id_.startswith(incomplete)]
        if not self._or_file:
            return items
        if not items:
            return super().shell_complete(ctx, param, incomplete)
        from glob import escape, glob

        return items + [CompletionItem(name) for name in glob(f"{escape(incomplete)}*")]


class WaiverText(CheckId):
    """ID=REASON, as a Waiver."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        from preflight.inputs.launch_words import Waiver

        check, _, reason = value.partition("=")
        # A waiver without a reason says so, in the place where the reason would stand.
        return Waiver(check, reason.strip() or "no reason given")


FILE = FileName()
MEASURED = click.option(
    "--measured", type=FILE, metavar="FILE", help="Hold it against what measure --save wrote, too."
)


class NumberOption(click.FloatRange):
    """``'abc' is not a valid number.``, where click says float range; ``nan`` is none either."""

    name = "number"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class Integer(click.IntRange):
    """``'abc' is not a valid integer.``, where click says integer range."""

    name = "integer"


class Size(AnyParamType):
    """A byte size in the documented grammar; a bare number is refused, with both spellings.

    With ``--rule documented`` it is bytes, as the helper reads it.
    empty: an empty text is no size, as where the option is left out.
    """

    name = "size"

    def __init__(self, least_bytes: int = 0, empty: bool = False) -> None:
        self._least_bytes, self._empty = least_bytes, empty

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int | None:
        """Return a size in bytes; one without a unit or too small is refused."""
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
    """Return a message that explains a bare --hicache-size.

    It is SGLang's own spelling, and means 10^9 bytes there.
    """
    number = value.strip()
    bare = number.isascii() and number.isdecimal() and len(number) <= 9
    if not bare or param is None or param.name != "hicache_size":
        return message
    return (
        f"{bare_number(value, number)}. SGLang's own --hicache-size {number} is {number} x 10^9 "
        f"bytes: write {int(number) * 10**9}b for that"
    )


class Fraction(AnyParamType):
    """``60%`` or ``0.6``, as a part of 1."""

    name = "part"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Return a part of all: 60% or 0.6."""
        text = str(value).strip()
        try:
            part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            part = -1.0
        if not 0 < part <= 1:
            self.fail(f"{value!r} is not a part of all: write 60% or 0.6", param, ctx)
        return part


class Nodes(AnyParamType):
    """NUMA nodes: ``0,1``, ``0-3`` or ``none``. ``repeats`` keeps order and repetitions."""

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
            return tuple(node for part in value.split(",") for node in parse_node_list(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of NUMA nodes: write 0,1 or none", param, ctx)


SIZE = Size()


# Characters of a config.json: those of published models have some thousands.
_LARGEST_CONFIG = 4 << 20

_TYPED = click.core.ParameterSource.COMMANDLINE

Function = TypeVar("Function", bound=Callable[..., Any])
Option = Callable[[Any], Any]

COLOR: Option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the text: auto does on a terminal.",
)
ROOT: Option = click.option(
    "--root",
    type=FILE,
    metavar="HOST",
    default="/",
    show_default=True,
    help="The host: /, a folder laid out like one, a capture, or demo:h800.",
)


def timeout_option(
    type_: NumberOption, default: float, help_: str, for_files_alone: bool = False
) -> Option:
    """Return the option ``--timeout``, as ``timeout_seconds``; it rules all that is opened.

    for_files_alone: it does nothing else, and the command gets no such parameter.
    """
    return click.option(
        "--timeout",
        "timeout_seconds",
        type=type_,
        default=default,
        show_default=True,
        help=help_,
        expose_value=not for_files_alone,
        callback=_rule,
    )


def _rule(context: click.Context, option: click.Parameter, seconds: float) -> float:
    """Let --timeout rule what the command opens, until it ends; a default means what it says."""
    typed = context.get_parameter_source(option.name or "") == _TYPED
    here, typed_seconds = HAS_TIMEOUT.set(True), GIVEN_SECONDS.set(seconds if typed else None)
    context.call_on_close(lambda: HAS_TIMEOUT.reset(here))
    context.call_on_close(lambda: GIVEN_SECONDS.reset(typed_seconds))
    return seconds


_TIME, _GIVEN_UP = NumberOption(0, 3600, min_open=True), "a file that does not answer is given up."
TIMEOUT = timeout_option(_TIME, LIMIT_SECONDS, "Seconds after which what was not read is unknown.")
FILE_TIMEOUT = timeout_option(_TIME, LIMIT_SECONDS, f"Seconds after which {_GIVEN_UP}", True)

_CHOSEN = ("only", "skip", "ignore", "waivers")
_CHECKS: tuple[Option, ...] = (
    click.option(
        "--only",
        type=CheckId(),
        multiple=True,
        metavar="GLOB",
        help="Make only these checks, as 'rdma.*'; may be given again.",
    ),
    click.option(
        "--skip",
        type=CheckId(),
        multiple=True,
        metavar="GLOB",
        help="Leave out these checks; may be given again.",
    ),
    click.option(
        "--ignore",
        type=WaiverText(),
        multiple=True,
        metavar="ID=REASON",
        help="Show what this check finds, and do not count it.",
    ),
    click.option(
        "--waivers",
        type=FILE,
        metavar="FILE",
        help="The same from a file, each with a reason and a last day.",
    ),
)

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


def _given(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse an empty version, which is a variable without a value: it names no release."""
    if text is not None and not text.strip():
        raise click.UsageError(f"{option.opts[0]} '': give a version, or leave the option out")
    return text


MOONCAKE_VERSION: Option = click.option(
    "--mooncake-version",
    callback=_given,
    metavar="VERSION",
    help="The launch's Mooncake, as 0.3.13.post1, where another one is installed here. Default: "
    "the installed one.",
)
# What is said of a launch alone, in the order in which --help shows it.
LAUNCH_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--sglang-version",
        callback=_given,
        metavar="VERSION",
        help="The launch's SGLang, where nothing of the launch says it. Default: 0.5.23.",
    ),
    click.option(
        "--model-config",
        type=FILE,
        metavar="FILE",
        help="The model's config.json, where no model folder or cache here has it.",
    ),
    click.option(
        "--gpu-memory",
        type=Size(least_bytes=1),
        help="Memory of the launch's smallest GPU, for --hicache-ratio. Default: this host's.",
    ),
    click.option(
        "--host-group",
        metavar="GROUP",
        help="Which of the launch's hosts this one is, where it is for several; read lists them.",
    ),
    click.option(
        "--env-file",
        "env_files",
        type=FILE,
        metavar="FILE",
        multiple=True,
        help="More environment for a launch, in docker's form; may be given again.",
    ),
)
LAUNCH: Option = click.argument("launch", nargs=-1, type=FILE)


def with_options(*options: Option) -> Callable[[Function], Function]:
    """Return a decorator that adds ``options``, in the order in which --help is to show them."""

    def decorated(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def gathered(
    function: Callable[..., Any], name: str, make: Callable[..., Any], *options: str
) -> Callable[..., Any]:
    """Give ``function`` one parameter ``name``, made of the values of ``options``."""

    @wraps(function)
    def with_one(**values: Any) -> Any:
        made = make(**{option: values.pop(option) for option in options if option in values})
        return function(**values, **{name: made})

    return with_one


def with_checks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add which checks are made, and what of them counts: ``chosen: Chosen``."""
    return with_options(*_CHECKS)(gathered(function, "chosen", _chosen, *_CHOSEN))


def _chosen(**options: Any) -> Chosen:
    from preflight.inputs.launch_words import Chosen

    return Chosen(**options)


def with_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the launch, and what may be said of it beside its own words: ``launch: LaunchWords``."""
    return _with_launch(function, NIC_NODES, RANK_NODES, MOONCAKE_VERSION)


def with_launch_of_installed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the launch without its Mooncake release, which the installed one says itself."""
    return _with_launch(function, NIC_NODES, RANK_NODES)


def _with_launch(function: Callable[..., Any], *first: Option) -> Callable[..., Any]:
    return with_options(*first, *LAUNCH_OPTIONS, LAUNCH)(taking_launch(function))


def taking_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``launch: LaunchWords`` of these options, which the caller adds itself."""
    versions = ("mooncake_version", "sglang_version", "model_config")
    names = ("nic_numa_nodes", "rank_numa_nodes", "gpu_memory", "host_group", "env_files", "launch")
    return gathered(function, "launch", _launch_words, *versions, *names)


def _launch_words(
    launch: tuple[str, ...],
    env_files: tuple[str, ...],
    nic_numa_nodes: tuple[int, ...] | None,
    rank_numa_nodes: tuple[int, ...] | None,
    sglang_version: str | None,
    model_config: str | None,
    gpu_memory: int | None,
    host_group: str | None = None,
    mooncake_version: str | None = None,
) -> LaunchWords:
    """Return the launch of the command line; standard input is read here, once."""
    from preflight.inputs.launch_words import LaunchWords

    if launch == ("-",):
        from preflight.launches.env_files import read_small_file

        # Here, once: what reads the launch may be another process, or read it twice.
        within(limit_seconds(), "standard input", lambda: read_small_file("-"))
    return LaunchWords(
        launch,
        env_files,
        nic_numa_nodes,
        rank_numa_nodes,
        mooncake_version,
        sglang_version,
        config_text(model_config),
        gpu_memory,
        host_group=host_group,
    )


def config_text(path: str | None) -> str | None:
    """Read what ``--model-config`` names, within bounds: a device has no end, a model no text."""
    if path is None:
        return None
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


def _verbosity(quiet: int, verbose: int) -> int:
    return verbose - quiet


def with_verbosity(verbose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add -q and -v as ``verbosity``: below 0 the verdict alone; ``verbose`` is the help of -v."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        adding = with_options(
            click.option("-q", "--quiet", count=True, help="Print only the verdict."),
            click.option("-v", "--verbose", count=True, help=verbose),
        )
        return adding(gathered(function, "verbosity", _verbosity, "quiet", "verbose"))

    return decorated
