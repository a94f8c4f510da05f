"""The error of all oracles that judge a life while it goes on."""

from __future__ import annotations


class BrokenPromiseError(AssertionError):
    """A promise is broken; ``kind`` says which, in a word or two."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
