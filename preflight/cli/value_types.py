"""The types of options' values: files, ids of checks, sizes, parts and NUMA nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from preflight.sizing.sizes import bare_number, parse_size

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4


class FileName(AnyParamType):
    """A name, which a shell completes as that of a file; whether it is there is seen later."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class CheckId(FileName):
    """The id of a check or rule, or a pattern; ``or_file``: or a file's name."""

    name = "id"

    def __init__(self, or_file: bool = False) -> None:
        self._or_file = or_file

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from preflight.check.catalogue import catalogue

        found = [CompletionItem(id_) for id_ in catalogue().ids if id_.startswith(incomplete)]
        if not self._or_file:
            return found
        if not found:
            return super().shell_complete(ctx, param, incomplete)
        from glob import escape, glob

        return found + [CompletionItem(name) for name in glob(f"{escape(incomplete)}*")]


class WaiverText(CheckId):
    """ID=REASON, as a Waiver."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from preflight.inputs.launch_words import Waiver

        check, _, reason = value.partition("=")
        # A waiver without a reason says so, in the place where the reason would stand.
        return Waiver(check, reason.strip() or "no reason given")


FILE = FileName()


class NumberOption(click.FloatRange):
    """``'abc' is not a valid number.``, where click says float range; ``nan`` is none either."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
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
        self._least_bytes = least_bytes
        self._empty = empty

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
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


class Part(AnyParamType):
    """``60%`` or ``0.6``, as a part of 1."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
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
