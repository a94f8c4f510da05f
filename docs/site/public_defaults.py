"""An extension of Griffe, which reads the signatures for the API's pages: defaults without names that nobody imports.

A default that is a constant of the module, as `DEFAULT_RECOVERY`, is shown as the value of that constant, and one that
a private function makes as ``...``. The extension `dataclasses` must come first: it makes constructors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import Alias, Attribute, Extension, Function, Module, Object


class PublicDefaults(Extension):
    """Shows a value where the default of a parameter is a constant, or has a private name."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Look at each parameter of a package that has just been read."""
        for function in _functions(pkg):
            for parameter in function.parameters:
                default = str(parameter.default or "")
                if default.startswith("_") or re.fullmatch("[A-Z][A-Z_]+", default):
                    constant: Any = function.module.members.get(default)
                    if isinstance(constant, Alias) and constant.target_path.startswith("dedup_"):
                        constant = constant.final_target
                    is_known = isinstance(constant, Attribute) and constant.value is not None
                    parameter.default = constant.value if is_known else "..."


def _functions(inside: Object) -> Iterator[Function]:
    for member in inside.members.values():
        if isinstance(member, Function):
            yield member
        elif isinstance(member, Object):
            yield from _functions(member)
