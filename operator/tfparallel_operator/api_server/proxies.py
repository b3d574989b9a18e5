"""Finds the proxy for an API server by the rules of client-go, as kubectl does."""

import base64
import dataclasses
import ipaddress
from collections.abc import Mapping

import yarl

_SCHEMES = ("http", "https")
_VARIABLES = {"https": ("HTTPS_PROXY", "https_proxy"), "http": ("HTTP_PROXY", "http_proxy")}
_EXCEPTIONS = ("NO_PROXY", "no_proxy")


class ProxyError(ValueError):
    """The address of a proxy is invalid. The message says where it is set and what to write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and where it is set."""

    address: yarl.URL
    """The address without credentials, which no message may show."""
    login: Mapping[str, str]
    """The header with the credentials; empty: none."""
    origin: str
    """The field or the variable that sets it."""

    def __str__(self) -> str:
        """Return the address and where it is set."""
        return f"{self.address} ({self.origin})"


def parse(text: str, origin: str) -> Proxy:
    """Return the proxy of an address; without a scheme it is an HTTP proxy.

    Raises:
        ProxyError: it is not an address of an HTTP proxy.
    """
    try:
        url = yarl.URL(text if "://" in text else f"http://{text}")
        has_address = bool(url.host) and url.port is not None
    except ValueError:  # The text may hold a password, so it is not shown.
        url, has_address = yarl.URL(), False
    if url.scheme not in _SCHEMES or not has_address:
        shown = f"the proxy {url.with_user(None)}" if url.host else "no proxy"
        raise ProxyError(
            f"{origin} names {shown}: write http://HOST:PORT or https://HOST:PORT."
            " Instead of SOCKS, forward a port with ssh -L"
        )
    return Proxy(url.with_user(None), _login(url), origin)


def _login(url: yarl.URL) -> dict[str, str]:
    if url.user is None and url.password is None:
        return {}
    encoded = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {encoded}"}


def from_environment(server: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the environment's proxy for a server; None: connect directly.

    Loopback addresses have no proxy.

    Raises:
        ProxyError: the variable is not an address of a proxy.
    """
    url = yarl.URL(server)
    variables = _VARIABLES.get(url.scheme, ())
    variable = next((name for name in variables if environment.get(name)), None)
    if variable is None or _is_excepted(url, environment):
        return None
    return parse(environment[variable], variable)


def _is_excepted(url: yarl.URL, environment: Mapping[str, str]) -> bool:
    host, address = (url.host or "").lower(), _address(url.host or "")
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    listed = next((environment[name] for name in _EXCEPTIONS if environment.get(name)), "")
    items = (item.strip().lower() for item in listed.split(","))
    return any(_covers(item, host, address, url.port) for item in items if item)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _covers(item: str, host: str, address: _Address | None, port: int | None) -> bool:
    """Whether an item of NO_PROXY covers a host: by name, domain, address or network."""
    if item == "*":
        return True
    if "/" in item:
        return address is not None and _is_in(address, item)
    name, excepted_port = _split(item)
    if excepted_port and excepted_port != str(port):
        return False
    if address is not None and _address(name) == address:
        return True
    domain = name[1:] if name.startswith("*.") else name
    if domain.startswith("."):
        return host.endswith(domain)
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _split(item: str) -> tuple[str, str]:
    """Return a host and its port, which may be empty."""
    if item.startswith("["):
        host, _, suffix = item[1:].partition("]")
        return host, suffix.removeprefix(":")
    if item.count(":") != 1:  # A bare IPv6 address has more.
        return item, ""
    host, _, port = item.partition(":")
    return host, port


def _is_in(address: _Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _address(text: str) -> _Address | None:
    """Parse an IP address. An IPv4-mapped IPv6 address becomes an IPv4 address, as in Go."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
