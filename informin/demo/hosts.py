"""Host names under which a search page may be opened.

A website can point its own name at this machine (DNS rebinding). A browser would then let the website's scripts read
the page, because both have the same origin. Their requests carry the website's name, which no page here has.
"""

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass

from informin.errors import UsageError

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s\[\]:/@?#\\]+)(?::\d{1,5})?")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Hosts:
    """Host names that a page is served for.

    Attributes:
        names: Names and addresses in lower case.
        addresses: Also accept every IP address. No website can have one that is not its own.
        extra: Further names, which may differ between the address bar and the request, as behind a proxy.
    """

    names: frozenset[str]
    addresses: bool = False
    extra: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        return name in self.names or name in self.extra or (self.addresses and _is_address(name))


def hosts_of(address: str, extra: Collection[str] = ()) -> Hosts:
    """Return the host names of a server.

    Args:
        address: Address that it listens on.
        extra: Further names, such as that of a reverse proxy.

    Raises:
        UsageError: A further name is not a bare host name.
    """
    for one in extra:
        if host_name(one) != one.lower() or ":" in one:
            raise UsageError(f"has {one!r}", option="allowed_hosts", needed="host names without scheme and port")
    name = address.strip("[]").lower()
    everywhere = _is_address(name) and ipaddress.ip_address(name).is_unspecified
    own = (socket.gethostname().lower(), f"{socket.gethostname().lower()}.local") if everywhere else (name,)
    return Hosts(frozenset((*LOOPBACK, *own)), everywhere, frozenset(one.lower() for one in extra))


def host_name(host: str) -> str | None:
    """Return the name in a Host header in lower case, without port, brackets and final dot; None if it is not valid."""
    found = HOST.fullmatch(host)
    return found[1].strip("[]").lower().removesuffix(".") if found else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
