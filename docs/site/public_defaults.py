"""An extension of Griffe, which reads the signatures for the API's pages: defaults without private names.

A default that is a constant of the module's own, `_DEFAULT_RECOVERY`, is shown as the value of that constant.
"""

from __future__ import annotations

from typing import Any

from griffe import Attribute, ExprName, Extension, Function


class PublicDefaults(Extension):
    """Shows the value of a private constant where a parameter has it for its default."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Look at each parameter of a function that has just been read."""
        for parameter in func.parameters:
            default = parameter.default
            if not isinstance(default, ExprName) or not default.name.startswith("_"):
                continue
            constant = func.module.members.get(default.name)
            if isinstance(constant, Attribute) and constant.value is not None:
                parameter.default = constant.value
