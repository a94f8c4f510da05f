"""Programs as users write them.

Type checkers read them (mypy with the rest, pyright by itself), and nobody runs them.
"""
