"""An extension of Griffe, which reads the signatures for the API's pages: defaults without private names.

A default that is a constant of the module's own, `_DEFAULT_RECOVERY`, is shown as the value of that constant, and one
that a private function makes as ``...``. The extension `dataclasses` must come first: it makes constructors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from griffe import Attribute, Extension, Function, Module, Object


class PublicDefaults(Extension):
    """Shows a value where the default of a parameter has a private name."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Look at each parameter of a package that has just been read."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                default = str(parameter.default or "")
                if default.startswith("_"):
                    constant: Any = function.module.members.get(default)
                    is_known = isinstance(constant, Attribute) and constant.value is not None
                    parameter.default = constant.value if is_known else "..."


def _functions(inside: Object) -> Iterator[Function]:
    for member in inside.members.values():
        if isinstance(member, Function):
            yield member
        elif isinstance(member, Object):
            yield from _functions(member)
