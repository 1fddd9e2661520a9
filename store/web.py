"""HTTP client of the store: it checks every redirect, and connects to private addresses only if the user
named them.

It uses httpcore2 directly, because only a network backend can connect to exactly the address that was
checked.
Invariant: a token is sent only to the origin for which it was given.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2

from satchel.errors import RequestError

REDIRECTS = 6
MOVED = (301, 302, 303, 307, 308)
AGAIN = (408, 425, 429, 500, 502, 503, 504)  # statuses after which a retry may succeed
JSON_LIMIT = 1 << 24  # bytes of a JSON response
PORTS = {"https": 443, "http": 80}
NAT64 = ipaddress.ip_network("64:ff9b::/96")
# The only IPv6 range that IANA has allocated for global unicast; deprecated IPv4-compatible forms are
# outside.
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Exceptions in the public IPv4 range: cloud metadata (Azure), IETF protocol assignments, 6to4 relays.
OF_MACHINES = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
Origin = tuple[str, int]


class Interrupted(Exception):
    """A failed transfer that may be retried. after: seconds that the server asks to wait."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class Refused(RequestError):
    """A permanent refusal by the server. status: the HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    url: str  # the final one, after redirects
    body: Iterator[bytes]

    def read(self, limit: int) -> bytes:
        """The whole body. RequestError where it is larger than `limit` bytes."""
        data = bytearray()
        for block in self.body:
            data += block
            if len(data) > limit:
                raise RequestError(f"{_short(self.url)}: expected at most {limit} bytes, got more")
        return bytes(data)


class Web:
    """An HTTP client.

    trusted: URLs whose host and port the user named; they may be in a private network.
    timeout: seconds for connecting, and for each read.
    silent: a private address and a missing one give the same error, which reveals neither.
    """

    def __init__(self, trusted: Iterable[str] = (), *, timeout: float = 30.0, silent: bool = False) -> None:
        self._trusted, self._silent = {origin(url) for url in trusted}, silent
        self._timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
        self._pools: dict[str, httpcore2.ConnectionPool] = {}

    def close(self) -> None:
        for pool in self._pools.values():
            with suppress(OSError):  # an error while closing a connection does no harm
                pool.close()

    @contextmanager
    def open(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str = "",
        method: str = "GET",
        body: bytes | None = None,
    ) -> Iterator[HttpResponse]:
        """Sends a request and follows redirects. Interrupted where the connection fails; RequestError for a
        redirect that is not allowed.

        token: a bearer token, sent to this URL's origin only.
        """
        first = origin(url)
        for _ in range(REDIRECTS):
            self._check(url)
            sent = {"accept-encoding": "identity", "user-agent": "satchel", **(headers or {})}
            if token and origin(url) == first:
                sent["authorization"] = f"Bearer {token}"
            with self._stream(method, url, sent, body) as answer:
                if answer.status not in MOVED:
                    yield answer
                    return
                url = _target(url, answer.headers.get("location", ""))
        raise RequestError(f"{url}: expected at most {REDIRECTS} redirects, got more")

    def json(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str = "",
        method: str = "GET",
        body: object = None,
        limit: int = JSON_LIMIT,
    ) -> Any:
        """The response as JSON. Refused for a status from 400; RequestError where it is not JSON."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"accept": "application/json", **(headers or {})}
        if data is not None:
            sent["content-type"] = "application/json"
        try:
            with self.open(url, headers=sent, token=token, method=method, body=data) as answer:
                check_status(answer)
                raw = answer.read(limit)
        except Interrupted as error:
            raise RequestError(f"{url}: {error}") from None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise RequestError(f"{url}: expected JSON, got {raw[:40]!a}") from None

    def _check(self, url: str) -> None:
        """Raises RequestError where the URL itself (before DNS) is not https or names a private address."""
        scheme, (host, port) = urlsplit(url).scheme, origin(url)
        if scheme != "https" and (scheme != "http" or (host, port) not in self._trusted):
            raise RequestError(f"{_short(url)}: expected https://, got {scheme}://; it is not followed")
        if (host, port) not in self._trusted and not _may_be_public(host):
            raise _astray() if self._silent else _private(host, host)

    @contextmanager
    def _stream(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> Iterator[HttpResponse]:
        pool = self._pool(url)
        extensions = {"timeout": self._timeout}
        listed = [*headers.items(), *([("content-length", str(len(body)))] if body is not None else [])]
        try:
            with pool.stream(method, url, headers=listed, content=body, extensions=extensions) as response:
                found = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers}
                yield HttpResponse(response.status, found, url, iter(response.iter_stream()))
        except httpcore2.UnsupportedProtocol as error:
            raise RequestError(f"{_short(url)}: {error}") from None
        except httpcore2.TimeoutException:
            raise Interrupted(f"nothing came for {self._timeout['read']:g} s") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError) as error:
            raise Interrupted(f"the connection failed: {error or type(error).__name__}") from None

    def _pool(self, url: str) -> httpcore2.ConnectionPool:
        """The connection pool for a URL: direct, or through the proxy of the environment."""
        split, host = urlsplit(url), origin(url)[0]
        proxy = getproxies().get(split.scheme, "")
        if proxy and (proxy_bypass(host) or not _may_be_public(host)):
            proxy = ""
        if proxy not in self._pools:
            self._pools[proxy] = self._connect(proxy)
        return self._pools[proxy]

    def _connect(self, proxy: str) -> httpcore2.ConnectionPool:
        if not proxy:
            return httpcore2.ConnectionPool(
                max_connections=16, network_backend=PublicNetworkBackend(self._trusted, self._silent)
            )
        split = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if split.scheme not in PORTS:
            raise RequestError(f"proxy {_short(proxy)}: expected http:// or https://, got {split.scheme}://")
        auth = (split.username or "", split.password or "") if split.username else None
        port = split.port or PORTS[split.scheme]
        return httpcore2.HTTPProxy(f"{split.scheme}://{split.hostname}:{port}", auth, max_connections=16)


class PublicNetworkBackend(httpcore2.SyncBackend):
    """Connects to public addresses, and to trusted origins at any address.

    The name is resolved once, and the connection goes to the checked address, so that a second DNS answer
    cannot redirect it (DNS rebinding).
    """

    def __init__(self, trusted: set[Origin], silent: bool = False) -> None:
        super().__init__()
        self._trusted, self._silent = trusted, silent

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        if (host.lower().strip("[]"), port) in self._trusted:
            return super().connect_tcp(host, port, timeout, local_address, socket_options)
        failed: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in self._addresses(host, port):
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            return public_addresses(host, port)
        except (RequestError, httpcore2.ConnectError):
            if self._silent:
                raise _astray() from None
            raise


def public_addresses(host: str, port: int) -> list[str]:
    """All addresses of the host. RequestError where one of them is not public."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"no address of {host}: {error}") from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not is_public(address):
            raise _private(host, address)
    return list(dict.fromkeys(addresses))


def is_public(address: str) -> bool:
    """Whether an address is publicly routable; an IPv4 address embedded in an IPv6 one is checked too."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        hidden = ip.ipv4_mapped or ip.sixtofour
        if ip in NAT64:
            hidden = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if hidden is None:
            return ip in GLOBAL_UNICAST and ip.is_global
        ip = hidden
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in OF_MACHINES)


def _may_be_public(host: str) -> bool:
    """False where the host is a spelling of an address that is not public."""
    if host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return is_public(host)
    except ValueError:
        pass
    try:
        return is_public(socket.inet_ntoa(socket.inet_aton(host)))  # 2130706433, 0x7f.1 and the like
    except OSError:
        return True


def origin(url: str) -> Origin:
    """(host, port) of a URL. RequestError without a host."""
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port or PORTS.get(split.scheme, 0)
    except ValueError:
        host, port = None, 0
    if not host:
        raise RequestError(f"{_short(url)}: expected an address with a host, got none")
    return host.lower(), port


def check_status(answer: HttpResponse) -> None:
    """Raises Interrupted for a status that may be retried, Refused for any other from 400."""
    status = answer.status
    if status < 400:
        return
    said = answer.headers.get("x-error-message", "")
    text = f"the server says {status}" + (f" ({said[:120]!a})" if said else "")
    if status in AGAIN:
        after = answer.headers.get("retry-after", "")
        raise Interrupted(text, float(after) if after.isdecimal() else 0.0)
    if status in (401, 403):
        text += ": the model is private, gated, or not there; HF_TOKEN holds the token of Hugging Face"
    if status == 404:
        text += ": no such model or file; check the name"
    raise Refused(f"{_short(answer.url)}: {text}", status)


def _target(url: str, location: str) -> str:
    """The URL of a redirect. RequestError where it is missing or malformed."""
    if not location:
        raise RequestError(f"{_short(url)}: expected an address in the redirect, got none")
    try:
        target = urljoin(url, location)
        split = urlsplit(target)
        strange = split.username is not None or not (location.isascii() and location.isprintable())
    except ValueError:
        strange = True
    if strange:
        raise RequestError(f"{_short(url)}: redirects to {location[:80]!a}; it is not followed")
    return target


def _private(host: str, address: str) -> RequestError:
    where = host if host == address else f"{host} ({address})"
    return RequestError(
        f"{where}: a redirect or manifest leads into a private network; it is not followed "
        "(SATCHEL_TRUSTED_HOSTS names hosts that may be)"
    )


def _astray() -> RequestError:
    return RequestError("a redirect or manifest leads to no public address; it is not followed")


def _short(url: str) -> str:
    """A URL without its query, which may contain a signature."""
    return url.partition("?")[0][:200]
