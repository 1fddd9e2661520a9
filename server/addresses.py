"""Client addresses: which connections count as one client, and which proxies may name another address.

A client is one IPv4 address or one IPv6 /64 network, because a host owns a whole /64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from satchel.errors import RequestError

UNREADABLE = "unreadable"  # the client of all requests whose forwarded address is not an address
HOST_BITS = 64  # of an IPv6 address
FORWARDED = (b"x-forwarded-for", b"forwarded", b"x-real-ip")


def client_of(address: str) -> str:
    """The client that an address belongs to: IPv4 (also mapped into IPv6) as it is, IPv6 by its /64."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return UNREADABLE
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((int(found) >> HOST_BITS << HOST_BITS, HOST_BITS)))
    return str(found)


class Proxies:
    """The addresses and networks of `--trusted-proxy`. RequestError where one is neither."""

    def __init__(self, named: Sequence[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in named:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                raise RequestError(
                    f"--trusted-proxy {text!r}: expected an IP address or a network such as 10.0.0.0/8"
                ) from None

    def trusts(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def forwarded(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The rightmost address of X-Forwarded-For that is not a trusted proxy's; "" without the header.

        Each proxy appends the address that it sees, so entries further left are the client's unverified
        claim.
        """
        joined = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = [_bare(part.strip()) for part in joined.decode("latin-1").split(",") if part.strip()]
        return next((hop for hop in reversed(hops) if not self.trusts(hop)), hops[0] if hops else "")


def is_forwarded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the headers claim that a proxy passed the request on."""
    return any(name in FORWARDED for name, _ in headers)


def _bare(hop: str) -> str:
    """An address without brackets and port."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
