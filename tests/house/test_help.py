"""--help says of every option what it takes, and when one wants it."""

from __future__ import annotations

import click

from tests.cli.commands import EVERY
from tests.tables import each_row

OPTIONS = [
    (f"{path} {option.opts[-1]}", option, click.Context(each, info_name=path))
    for path, each in EVERY.items()
    for option in each.params
    if isinstance(option, click.Option)
]


@each_row(("name", "option", "context"), OPTIONS)
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
