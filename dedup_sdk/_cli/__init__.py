"""The command ``dedup``: the demo, and tools that rebuild and inspect key stores (extra ``[cli]``).

Exit status: 0 done; 1 failed, or nothing was found; 2 wrong usage; 130 ended by Ctrl-C. Data goes to
stdout, messages to stderr; an error is one line.
"""

from __future__ import annotations

import sys

from dedup_sdk._cli.console import ready_streams

_EXTRA = frozenset({"typer", "rich"})


def main() -> None:
    """Run ``dedup`` with the arguments of this process, and exit."""
    ready_streams()
    try:
        from dedup_sdk._cli.app import run
    except KeyboardInterrupt:
        sys.stderr.write("dedup: interrupted\n")
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        sys.exit(f"dedup: {error.name} is not installed: pip install 'dedup-sdk[cli]'")
    sys.exit(run(sys.argv[1:]))


__all__ = ["main"]
