"""ZMQ endpoints, by vLLM's rules.

A publisher binds a wildcard address and any ipc path, and connects to everything else, so that a
central subscriber can bind. Rank r takes the port of rank 0 plus r.
"""

import re
from dataclasses import dataclass

MAX_PORT = 65535
_WILDCARDS = {"*", "::", "0.0.0.0"}


@dataclass(frozen=True, slots=True)
class Address:
    """One ZMQ endpoint."""

    scheme: str
    """tcp or ipc."""
    name: str
    """Host without brackets, or path."""
    port: int = 0
    """0 takes any free port."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read an endpoint.

        Raises:
            ValueError: if it is none that ZMQ could bind or connect.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or not rest or scheme not in ("tcp", "ipc"):
            raise ValueError(f"must be tcp://HOST:PORT or ipc://PATH, not {text!r}")
        if scheme == "ipc":
            return cls(scheme, rest)
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
            raise ValueError(f"must be tcp://HOST:PORT with a port of 0..{MAX_PORT}, not {text!r}")
        return cls(scheme, host, int(port))

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.name}"
        host = f"[{self.name}]" if ":" in self.name else self.name
        return f"tcp://{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of this host."""
        return self.scheme == "tcp" and self.name in _WILDCARDS

    @property
    def is_bound(self) -> bool:
        """Whether a publisher binds it, rather than to connect to it."""
        return self.scheme != "tcp" or self.is_wildcard

    @property
    def is_ipv6(self) -> bool:
        """Whether the socket must speak IPv6."""
        return ":" in self.name and self.scheme == "tcp"

    def reachable(self, host: str) -> "Address":
        """Return where others find what is bound to all addresses of `host`."""
        return Address(self.scheme, host, self.port) if self.is_wildcard else self

    def for_rank(self, dp_rank: int) -> "Address":
        """Return the endpoint of a rank."""
        if dp_rank == 0 or (self.scheme == "tcp" and self.port == 0):
            return self
        if self.scheme == "tcp":
            return Address(self.scheme, self.name, self.port + dp_rank)
        return Address(self.scheme, f"{self.name}_dp{dp_rank}")
