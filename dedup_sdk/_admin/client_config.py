"""Settings of Kafka clients as a command line gives them: ``KEY=VALUE``, or a file of Java's properties.

A text is ``KEY=VALUE`` if only letters, digits, dots, hyphens and underscores stand before its first ``=``; every other
text names a file. A file whose name has ``=`` is therefore given with a slash: ``./a=b``. ``${env:NAME}`` in a value
stands for an environment variable, as with Kafka's ``EnvVarConfigProvider``. No message shows a value: it may be a
password. The value of ``oauth_cb``, the client's one setting that is a function, is ``py:MODULE:NAME``.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from dedup_sdk._admin.properties_file import read_properties
from dedup_sdk._checks import unfit_arguments
from dedup_sdk._masking import error_shown, masked_text, shown
from dedup_sdk.errors import ConfigurationError

CLIENT_CONFIG_HELP: Final = (
    "Settings of the Kafka client: a properties file, or one KEY=VALUE. May be repeated; a later setting replaces an "
    "earlier one. If the name of a file has =, write it as ./a=b. ${env:NAME} in a value is the "
    "environment variable NAME. Others can see arguments: give secrets in a file or in the environment. "
    "oauth_cb=py:MODULE:NAME is your function that makes the tokens of OAUTHBEARER, as confluent-kafka calls it."
)
_SETTING: Final = re.compile(r"([\w.-]+)=(.*)", re.DOTALL | re.ASCII)
_TOKENS: Final = "oauth_cb"
_VARIABLE: Final = re.compile(r"\$\{env:([^}]*)\}")


class TokenFunction(str):
    """The text ``py:MODULE:NAME``, which a client can call: the function of that name then makes a token.

    As text it goes to other processes, e.g. Spark's workers, which import the function themselves.
    """

    __slots__ = ()

    def __call__(self, config: str) -> Any:
        """Return what the function returns for ``sasl.oauthbearer.config``: a token and when it expires."""
        return self.imported()(config)

    def imported(self) -> Callable[[str], Any]:
        """Return the function.

        Raises:
            ConfigurationError: there is none of that name.
        """
        path = self.removeprefix("py:")
        if path == self or path.count(":") != 1:
            # Without the value: it may be a token.
            raise ConfigurationError("oauth_cb names no function; write e.g. oauth_cb=py:shop.kafka:token")
        try:
            found: object = pkgutil.resolve_name(path)
        except Exception as error:  # noqa: BLE001 (whatever the module raises)
            raise ConfigurationError(
                f"oauth_cb={self} cannot be imported ({error_shown(error)}); write oauth_cb=py:MODULE:NAME, the module "
                "on sys.path"
            ) from None
        if not callable(found) or unfit_arguments(found, 1) is not None:
            raise ConfigurationError(
                f"oauth_cb={self} is {shown(found)}; name a function of one argument, the text of "
                "sasl.oauthbearer.config"
            )
        return found


def is_setting(text: str) -> bool:
    """Whether a text is ``KEY=VALUE``; otherwise it names a file."""
    return _SETTING.fullmatch(text) is not None


def client_settings(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return the settings that the texts give; ``option`` is how messages name where they were given.

    Raises:
        ConfigurationError: a text is neither a setting nor a readable file, a variable is not set, or the function of
            ``oauth_cb`` cannot be imported.
    """
    settings: dict[str, str] = {}
    for text in texts:
        found = _SETTING.fullmatch(text)
        given = {found[1]: found[2]} if found else _of_file(option, text)
        settings |= {key: _filled_in(option, key, value) for key, value in given.items()}
    if _TOKENS in settings:
        settings[_TOKENS] = function = TokenFunction(settings[_TOKENS])
        function.imported()
    return settings


def _of_file(option: str, text: str) -> dict[str, str]:
    if not text.strip():
        raise ConfigurationError(f"{option} is empty; give e.g. security.protocol=SSL, or a properties file")
    key, equals, _ = text.partition("=")
    said = f"{masked_text(key)}=***" if equals else masked_text(text)
    path = Path(text)
    if equals and "\0" not in text and not path.is_file():
        raise ConfigurationError(
            f"{option} {said} is not a file, and its key is not one of a setting; give e.g. security.protocol=SSL, "
            "or a properties file"
        )
    return read_properties(path, option=f"{option} {said}")


def _filled_in(option: str, key: str, value: str) -> str:
    def variable(found: re.Match[str]) -> str:
        try:
            return os.environ[found[1]]
        except KeyError:
            raise ConfigurationError(
                f"{option} {key}: the environment variable {shown(found[1])} is not set; set it, or give the value "
                f"in a file"
            ) from None

    return _VARIABLE.sub(variable, value)
