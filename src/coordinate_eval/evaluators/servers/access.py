"""A server's address, and the key that it asks for: read from settings and the environment."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from coordinate_eval._format import brief
from coordinate_eval.errors import UserError

LEAST_SECRET: Final = 8
"""Characters of a key that is a secret. A shorter one, such as "none", is also a usual word."""


@dataclass(frozen=True)
class Access:
    """The address of a server, and the name of a model there."""

    base_url: str
    model: str
    key: str = field(default="", repr=False)
    section: str = "judge"
    """Section of the settings that name the server."""
    socket: str = ""
    """The socket file that it listens on, in place of the address."""

    @property
    def who(self) -> str:
        """Return what the server is to its users, for messages."""
        return "the judge" if self.section == "judge" else "the server"

    @classmethod
    def of(
        cls,
        base_url: str,
        model: str,
        key_variable: str | None,
        environ: Mapping[str, str],
        section: str = "judge",
    ) -> Self:
        """Return the access that settings of a section and the environment give.

        Raises:
            UserError: the address is none, holds a secret, or the key is not there.
        """
        key = read_key(key_variable, environ, section)
        return cls(cls.check(base_url, section), model, key, section)

    @staticmethod
    def check(base_url: str, section: str) -> str:
        """Return an address without the slash at its end.

        Raises:
            UserError: it is none, or holds a secret.
        """
        what = f"setting {section}.base_url {_without_secrets(base_url)!r}"
        try:
            parts = urlsplit(base_url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise UserError(f"{what} is no address: give one such as http://host:8000/v1") from None
        if parts.scheme not in ("http", "https") or not host or not base_url.isprintable():
            raise UserError(f"{what} is no address: give one such as http://host:8000/v1")
        if parts.username or parts.password:
            raise UserError(
                f"{what} holds a password, which would stand in files of the run: put it into an "
                f"environment variable, and the variable's name into [{section}] api_key_env"
            )
        if parts.query or parts.fragment:
            raise UserError(f"{what} must end with its path, such as /v1")
        return base_url.rstrip("/")


def _without_secrets(base_url: str) -> str:
    return re.sub(r"//[^/]*@", "//…@", base_url.partition("?")[0])


def read_key(variable: str | None, environ: Mapping[str, str], section: str = "judge") -> str:
    """Return the key in an environment variable; an empty text if none is named.

    Raises:
        UserError: the variable is not set, or holds what cannot be a key.
    """
    if not variable:
        return ""
    key = environ.get(variable, "").strip()
    where = f"environment variable {brief(variable, 100)}, which [{section}] api_key_env names,"
    if not key:
        raise UserError(f"{where} is not set: export it, or leave out api_key_env")
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError(f"{where} holds no key: it must be ASCII without spaces")
    return key


def spellings(key: str) -> re.Pattern[str]:
    """Return a pattern of a key as JSON, JSON within JSON, or an address may spell it."""
    return re.compile(
        "".join(
            rf"\\{{0,4}}(?:{re.escape(each)}|u(?i:{ord(each):04x})|%(?i:{ord(each):02x}))"
            for each in key
        )
    )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: no proxy is asked for it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
