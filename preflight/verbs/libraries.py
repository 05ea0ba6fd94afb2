"""Which library makes RDMA objects: pyverbs where it is installed, else ibverbs, else ctypes.

pyverbs is rdma-core's own binding (Debian's ``python3-pyverbs``; a virtual environment sees it when
it was made with ``--system-site-packages``). The ``ibverbs`` wheel comes with the extra ``rdma``.
ctypes serves a bare container, and a node to which this program was carried.
"""

from __future__ import annotations

from importlib import import_module

from preflight.verbs.objects import Device

# Preferred first; each has ``open_device(name)``. The last needs nothing but libibverbs.
LIBRARIES: tuple[str, ...] = ("pyverbs_objects", "ibverbs_objects", "ctypes_objects")


def open_device(name: str) -> Device:
    """Open ``name``. Raises VerbsError; OSError where libibverbs cannot be loaded at all."""
    *preferred, last = LIBRARIES
    for module in preferred:
        try:
            library = import_module(f"preflight.verbs.{module}")
        except ImportError:
            continue
        opened: Device = library.open_device(name)
        return opened
    bare: Device = import_module(f"preflight.verbs.{last}").open_device(name)
    return bare
