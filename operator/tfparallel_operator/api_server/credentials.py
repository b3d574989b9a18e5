"""Address and credentials of the API server, from a service account or a kubeconfig."""

import asyncio
import contextlib
import dataclasses
import importlib
import os
import pathlib
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import aiohttp

from tfparallel_operator.api_server import proxies

SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LIFETIME_SECONDS = 60.0
"""How long a token is cached. The kubelet replaces its file long before it expires."""

PROXY_FIELD = "proxy-url of its cluster in the kubeconfig"

CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 30.0

_REDIRECTS = (301, 302, 303, 307, 308)


class CredentialsError(Exception):
    """No usable credentials for the API server. The message is for the user."""


class Token:
    """A bearer token, which is read again each minute, and at once after a refusal."""

    def __init__(
        self,
        read: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
        log_in: Callable[[], None] | None = None,
    ) -> None:
        """Create a token.

        Args:
            read: returns the token, from a file or a login plugin.
            clock: in seconds.
            log_in: called before the token is read again after the API server refused it.
        """
        self._read = read
        self._clock = clock
        self._log_in = log_in
        self._is_refused = False
        self._value: str | None = None
        self._read_at: float | None = None
        self._renewal = asyncio.Lock()

    async def header(self) -> dict[str, str]:
        """Return the header with the token; empty: client certificates authenticate."""
        async with self._renewal:  # Of many requests, one renews.
            await self._renew()
        return self._header()

    def forget(self, refused: Mapping[str, str]) -> None:
        """Log in, and read the token again, before the next request.

        Args:
            refused: the refused header; a token that was renewed since then stays.
        """
        if refused == self._header():
            self._read_at = None
            self._is_refused = True

    async def _renew(self) -> None:
        now = self._clock()
        if self._is_refused and self._log_in is not None:
            await asyncio.to_thread(self._log_in)
        self._is_refused = False
        if self._read_at is None or now - self._read_at >= TOKEN_LIFETIME_SECONDS:
            self._value = await asyncio.to_thread(self._read)
            self._read_at = now

    def _header(self) -> dict[str, str]:
        return {} if self._value is None else {"Authorization": f"Bearer {self._value}"}


class Trust(ssl.SSLContext):
    """Trusted certificates, whose files are read again for each new connection."""

    _build: Callable[[], ssl.SSLContext]
    _files: tuple[pathlib.Path, ...]
    _contents: tuple[bytes, ...]
    _context: ssl.SSLContext

    @classmethod
    def from_files(
        cls, build: Callable[[], ssl.SSLContext], *files: str | os.PathLike[str]
    ) -> Self:
        """Return trust in the certificates of files.

        Args:
            build: builds the context of TLS from the files.
            files: their paths; if they cannot be read, the last context stays.
        """
        trust = cls(ssl.PROTOCOL_TLS_CLIENT)
        trust._build, trust._files = build, tuple(map(pathlib.Path, files))
        trust._contents, trust._context = trust._read(), build()
        return trust

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Start TLS on a connection, as the event loop requires."""
        with contextlib.suppress(OSError):  # ssl.SSLError is one
            if (contents := self._read()) != self._contents:
                self._context, self._contents = self._build(), contents
        return self._context.wrap_bio(*arguments, **options)

    def _read(self) -> tuple[bytes, ...]:
        return tuple(file.read_bytes() for file in self._files)


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """The API server's address and the credentials for it."""

    server: str
    tls: ssl.SSLContext | bool
    """Trusted certificates, and the client's own, if it has one."""
    token: Token
    proxy: proxies.Proxy | None = None
    server_name: str | None = None
    """The name that the certificate must have; None: the host of the address."""

    def session(
        self,
        *middlewares: aiohttp.ClientMiddlewareType,
        answers: type[aiohttp.ClientResponse] = aiohttp.ClientResponse,
    ) -> aiohttp.ClientSession:
        """Open a session whose requests have the current token.

        Args:
            middlewares: run before each request.
            answers: the class of responses.
        """

        async def authenticate(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            sent = await self.token.header()
            request.headers.update(sent)
            request.server_hostname = self.server_name
            if self.proxy is not None:
                request.update_proxy(self.proxy.address, None, self.proxy.login)
                if not request.is_ssl():  # The proxy reads the request itself.
                    request.headers.update(self.proxy.login)
            response = await handler(request)
            if response.status in _REDIRECTS:
                response.close()  # The next request would carry the token to whoever it names.
                raise aiohttp.ClientConnectionError(
                    f"HTTP status {response.status}, a redirect, as no API server sends: a proxy"
                    " or a login page answers in its place"
                )
            if response.status != 401:
                return response
            self.token.forget(sent)
            # Only requests without a body are repeated.
            if request.method != "GET" or (renewed := await self.token.header()) == sent:
                return response
            response.release()
            request.headers.update(renewed)
            return await handler(request)

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_SECONDS, sock_read=READ_TIMEOUT_SECONDS
            ),
            middlewares=(*middlewares, authenticate),
            response_class=answers,
        )


def find(kubeconfig: str | None, folder: pathlib.Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of a kubeconfig, or of the pod's service account.

    Args:
        kubeconfig: path of a kubeconfig; None: the service account.
        folder: of the service account's files.

    Raises:
        CredentialsError: neither is usable.
    """
    return from_kubeconfig(kubeconfig) if kubeconfig else _from_service_account(folder)


def from_kubeconfig(path: str, context: str | None = None) -> Access:
    """Return the access of a context.

    Args:
        path: of a kubeconfig, or of several, separated as in $KUBECONFIG.
        context: None: the current one.

    Raises:
        CredentialsError: it isn't usable.
    """
    try:
        config = importlib.import_module("kubernetes.config")
        package = importlib.import_module("kubernetes.client")
    except ImportError as error:
        raise CredentialsError(
            "the package kubernetes reads kubeconfigs, and is not installed: pip install kubernetes"
        ) from error

    def load() -> Any:
        loaded = package.Configuration()
        loaded.proxy = None  # The package's rules for the environment differ from kubectl's.
        try:
            config.load_kube_config(path, context, client_configuration=loaded)
        except (config.ConfigException, OSError, ValueError) as error:
            raise CredentialsError(f"kubeconfig {path!r} cannot be used: {error}") from error
        return loaded

    configuration = load()

    def log_in() -> None:
        # The package calls a login plugin again only after its token has expired.
        nonlocal configuration
        with contextlib.suppress(CredentialsError):  # The response of the API server says more.
            configuration = load()

    def read() -> str | None:
        # The package renews expired tokens of login plugins in this call.
        value = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return None if value is None else str(value).removeprefix("Bearer ")

    server = str(configuration.host).rstrip("/")
    return Access(
        server,
        _tls(configuration),
        Token(read, log_in=log_in),
        _proxy(server, configuration.proxy),
        configuration.tls_server_name or None,
    )


def own_namespace(folder: pathlib.Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace of the operator's pod; outside a cluster `default`."""
    path = folder / "namespace"
    return path.read_text().strip() if path.exists() else "default"


def _from_service_account(folder: pathlib.Path) -> Access:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = folder / "token"
    if not host or not token.exists():
        raise CredentialsError(
            f"no way to the API server: KUBERNETES_SERVICE_HOST is {host!r} and {token} "
            f"{'exists' if token.exists() else 'is missing'}; outside a cluster give --kubeconfig"
        )
    authority = str(folder / "ca.crt")
    tls = Trust.from_files(lambda: ssl.create_default_context(cafile=authority), authority)
    shown = f"[{host}]" if ":" in host else host
    server = f"https://{shown}:{port}"
    return Access(server, tls, Token(lambda: token.read_text().strip()), _proxy(server))


def _proxy(server: str, configured: str | None = None) -> proxies.Proxy | None:
    """Return the proxy of a kubeconfig, or else of the environment.

    Raises:
        CredentialsError: it isn't usable.
    """
    try:
        if configured:
            return proxies.parse(configured, PROXY_FIELD)
        return proxies.from_environment(server, os.environ)
    except proxies.ProxyError as error:
        raise CredentialsError(str(error)) from error


def _tls(configuration: Any) -> ssl.SSLContext:
    if configuration.host.startswith("http://"):  # of kubectl proxy: nothing needs certificates
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def build() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    named = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return Trust.from_files(build, *filter(None, named))
