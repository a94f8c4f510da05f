"""Windows: one for each topic, where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.window import Window, window_of

ByTopic = Mapping[str, Window] | Callable[[str], Window | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A window for every topic: its own where it has one, else ``default``.

    ``topics`` are windows by the topic's name, or a function of that name which returns a window, or None for the default; it is to
    give the same answer whenever it is asked. Texts stand for windows, and ``"off"`` or `Window.off` says that nothing is
    looked up. Raises `ConfigurationError` for anything else.
    """

    default: Window
    topics: ByTopic = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Accept texts for windows; refuse anything else in one line."""
        object.__setattr__(self, "default", window_of("default", self.default))
        given: object = self.topics  # what callers without a type checker pass
        if isinstance(given, Mapping):
            windows = {_name(topic): window_of(f"topics[{topic!r}]", each) for topic, each in given.items()}
            object.__setattr__(self, "topics", MappingProxyType(windows))
        elif not callable(given) or isinstance(given, type):
            message = f"topics={given!r}: give windows by topic, e.g. {{'orders': Window(days=7)}}, or a function of a topic's name"
            raise ConfigurationError(message)

    def of(self, topic: str) -> Window:
        """Return the window of a topic; raises `ConfigurationError` where the function fails, or returns no window."""
        if isinstance(self.topics, Mapping):
            return self.topics.get(topic, self.default)
        try:
            found: object = self.topics(topic)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            message = f"the function of windows failed for topic {topic!r} ({cause}); have it return a Window, or None for the default"
            raise ConfigurationError(message) from error
        return self.default if found is None else window_of(f"the window of topic {topic!r}", found)


def _name(topic: object) -> str:
    if isinstance(topic, str) and topic:
        return topic
    message = f"topics has the key {topic!r}: give names of topics, e.g. {{'orders': Window(days=7)}}"
    raise ConfigurationError(message)
