"""The help of commands where stdout is no terminal: plain text, each option and each command on one line.

A program that reads the help, e.g. grep, gets no boxes, and no name that is cut off at the width of a terminal.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_OF_ARGUMENTS = "Arguments"
_OF_OPTIONS = "Options"
_OF_COMMANDS = "Commands"


class Command(TyperCommand):
    """A command whose help is plain text where stdout is no terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: typer's own on a terminal, `plain_help` on anything else."""
        if not printed_plainly(self, ctx):
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A group of commands whose help is plain text where stdout is no terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: typer's own on a terminal, `plain_help` on anything else."""
        if not printed_plainly(self, ctx):
            super().format_help(ctx, formatter)


def printed_plainly(command: Any, ctx: Any) -> bool:
    """Print `plain_help` unless stdout is a terminal; return whether it was printed."""
    if sys.stdout.isatty():
        return False
    typer.echo(plain_help(command, ctx), nl=False)
    return True


def plain_help(command: Any, ctx: Any) -> str:
    """Return the help of a command or of a group as lines that are as long as they need to be.

    The sections and their order are those of the help on a terminal.
    """
    usage = " ".join((ctx.command_path, *command.collect_usage_pieces(ctx)))
    parts = [f"Usage: {usage}", _text(command.help or "")]
    parts += [_section(title, rows) for title, rows in _sections(command, ctx)]
    parts.append(_text(command.epilog or ""))
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(markdown: str) -> str:
    return inspect.cleandoc(markdown).replace("**Examples**", "Examples:")


def _sections(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the sections behind the text: a title, and rows of a name and its help."""
    sections: dict[str, list[tuple[str, str]]] = {_OF_ARGUMENTS: [], _OF_OPTIONS: []}
    for parameter in command.get_params(ctx):
        row = parameter.get_help_record(ctx)
        if row is None:
            continue
        usual = _OF_ARGUMENTS if parameter.param_type_name == "argument" else _OF_OPTIONS
        sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(row)
    if isinstance(command, TyperGroup):
        named = ((name, command.get_command(ctx, name)) for name in command.list_commands(ctx))
        sections[_OF_COMMANDS] = [
            (name, inspect.cleandoc(each.help or "").partition("\n\n")[0])
            for name, each in named
            if each is not None and not each.hidden
        ]
    yield from sections.items()


def _section(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {' '.join(told.split())}".rstrip() for name, told in rows]
    return "\n".join([f"{title}:", *lines])
