"""``--format`` and ``--output``: in which forms a command answers, and where each of them goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from preflight.base.command_frame import Answers, asked_answers, own_words
from preflight.base.output import output_to
from preflight.base.usage_error import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Forms with an exit code of their own: one at a time.
PROTOCOLS = ("nagios", "npd", "slurm-prolog", "k8s")
WORDS = f"{__name__}.words"
# Options that are gone -> what to write.
GONE = {
    "--exit-protocol": "write --format nagios, npd, slurm-prolog or k8s",
    "--html": "write --format text --format html --output FILE",
    "--junit": "write --format text --format junit --output FILE",
    "--nodes-failing": "write --list failing",
    "--nodes-passing": "write --list passing",
    "--svg": "write --format text --format svg --output FILE",
}


class FileName(AnyParamType):
    """A name, which a shell completes as that of a file; whether it is there is seen later."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def with_formats(*names: str, again: str = "; may be given again") -> Decorator:
    """Add in which of the forms ``names`` a command answers: ``answers``, each with its file.

    The first is the default.
    """
    default = names[0]
    options = (
        click.option(
            "--json", "as_json", is_flag=True, help="As --format json: one object, always."
        ),
        click.option(
            "--output", type=FileName(), metavar="FILE", multiple=True,
            help="Where the --format before it goes. Default: standard output.",
        ),
        click.option(
            "--format", "format_", type=click.Choice(names), metavar="FORMAT", multiple=True,
            help=f"One of {', '.join(names)}{again}. Default: {default}.",
        ),
    )  # fmt: skip

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        """Add the three options to a command."""

        @wraps(function)
        def with_answers(**options: Any) -> Any:
            for name in ("format_", "output", "as_json"):
                del options[name]
            return function(answers=_answers(names, default), **options)

        for option in options:
            with_answers = option(with_answers)
        return with_answers

    return decorated


def with_one_format(*names: str) -> Decorator:
    """Add the same for a command that answers in one form at a time: ``format_``."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        """Add the options to a command that takes one answer."""

        @wraps(function)
        def with_one(*, answers: Answers, **options: Any) -> Any:
            if len(answers) > 1:
                raise UsageError("this command answers in one format: give one --format")
            ((name, path),) = answers
            with output_to(path):
                return function(format_=name, **options)

        return with_formats(*names, again="")(with_one)

    return decorated


def JSON(function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802 - as the options beside it
    """Add --format text or json: ``as_json``."""

    @wraps(function)
    def with_json(*, format_: str, **options: Any) -> Any:
        return function(as_json=format_ == "json", **options)

    return with_one_format("text", "json")(with_json)


def _answers(names: tuple[str, ...], default: str) -> Answers:
    """Return the answers that the command line asks for. Raises UsageError."""
    words = click.get_current_context().meta[WORDS]
    answers = asked_answers(own_words(words)) or [(default, None)]
    answers = [(name or default, path) for name, path in answers]
    asked, printed = [name for name, _ in answers], [n for n, path in answers if path is None]
    if twice := [name for name in asked if asked.count(name) > 1]:
        raise UsageError(f"--format {twice[0]} is given twice")
    if len(protocols := [name for name in asked if name in PROTOCOLS]) > 1:
        raise UsageError(f"{' and '.join(protocols)} each have an exit code: give one of them")
    if len(printed) > 1:
        both = " and ".join(printed)
        raise UsageError(f"{both} both take standard output: write --output FILE behind one")
    # What cannot be written is told before something is printed.
    return sorted(answers, key=lambda answer: answer[1] is None)
