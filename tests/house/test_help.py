"""--help says of every option what it takes, and when one wants it."""

from collections.abc import Iterator

import click
import pytest

from preflight.cli.main import command
from preflight.cli.sizing import command as sizing


def options() -> Iterator[tuple[str, click.Option, click.Context]]:
    """Each option of each command, by the words that one types."""

    def below(path: str, found: click.Command) -> Iterator[tuple[str, click.Option, click.Context]]:
        context = click.Context(found, info_name=path)
        if isinstance(found, click.Group):
            for name in found.list_commands(context):
                each = found.get_command(context, name)
                assert each is not None
                yield from below(f"{path} {name}", each)
        for one in found.params:
            if isinstance(one, click.Option):
                yield f"{path} {one.opts[-1]}", one, context

    yield from below("mooncake-preflight", command)
    yield from below("mooncake-hicache-sizing", sizing)


OPTIONS = list(options())


@pytest.mark.parametrize(("name", "option", "context"), OPTIONS, ids=[name for name, *_ in OPTIONS])
def test_an_option_says_what_it_is_for(
    name: str, option: click.Option, context: click.Context
) -> None:
    """In a sentence; a choice names its default, and what takes a value shows what it is."""
    said = option.help or ""
    assert said[:1].isupper(), name
    assert said.endswith("."), name
    if isinstance(option.type, click.Choice):
        assert option.show_default or "efault" in said, name
    if not (option.is_flag or option.count):
        shown = option.make_metavar(context)
        assert option.metavar or shown not in ("", "TEXT"), f"{name}: give it a metavar"
