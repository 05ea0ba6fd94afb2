"""``NamedTuple`` whose classes cost a tenth: a start makes 270 such classes and uses some hundred.

With ``typing.NamedTuple``, which compiles code for each class and checks the type of each field,
they took a sixth of ``check`` with a launch (benchmarks/startup.py: 5.1 times ``import click``, 4.4
without). Here a class gets the methods of ``collections.namedtuple`` when it makes its first
record; types are left to mypy.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 14):  # annotations are no longer in the namespace
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter
    from collections import namedtuple

    def _first_record(cls, *values, **named):
        """Give the class its methods, ``__new__`` among them, and make the record."""
        owner = next(base for base in cls.__mro__ if "_fields" in vars(base))
        defaults = owner._field_defaults.values()
        model = namedtuple(owner.__name__, owner._fields, defaults=defaults)
        # ``__new__`` last: another thread that makes a record then finds the other methods.
        for name in ("_make", "_replace", "_asdict", "__getnewargs__", "__repr__", "__new__"):
            if name != "__repr__" or name not in vars(owner):
                setattr(owner, name, vars(model)[name])
        return cls.__new__(cls, *values, **named)

    class _RecordType(type):
        """Makes a class of tuples from the annotations and defaults of a class body."""

        def __new__(cls, name, bases, body):
            """Return the class with its fields and defaults; its first record adds the methods."""
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            getters = {field: _tuplegetter(place, "") for place, field in enumerate(fields)}
            names = {"_fields": fields, "__match_args__": fields, "_field_defaults": defaults}
            made = {"__slots__": (), "__new__": _first_record, "_make": classmethod(_make)}
            return type(name, (tuple,), {**body, **getters, **names, **made})

    def _make(cls, values):
        """Make a record of the values in order, as ``_make`` of the methods to come does."""
        return cls(*values)

    def NamedTuple():  # noqa: N802
        """Stand as the base of a class body."""

    NamedTuple.__mro_entries__ = lambda bases: (type.__new__(_RecordType, "_Record", (), {}),)
