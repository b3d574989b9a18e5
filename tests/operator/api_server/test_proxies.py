"""Which proxy a server is reached through: the rules of client-go."""

import base64

import pytest

from tfparallel_operator.api_server import proxies

SERVER = "https://api.cluster.example:6443"
PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("server", "variables", "expected"),
    [
        (SERVER, {}, None),
        (SERVER, {"HTTPS_PROXY": PROXY}, PROXY),
        (SERVER, {"https_proxy": PROXY}, PROXY),
        (SERVER, {"HTTPS_PROXY": PROXY, "https_proxy": "http://other:1"}, PROXY),
        (SERVER, {"HTTPS_PROXY": "proxy.example:3128"}, PROXY),
        (SERVER, {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None),
        ("http://api.example:8001", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::ffff:127.0.0.1]:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
    ],
)
def test_the_variable_of_the_scheme_names_the_proxy(
    server: str, variables: dict[str, str], expected: str | None
) -> None:
    proxy = proxies.from_environment(server, variables)
    assert (proxy and str(proxy.address).rstrip("/")) == expected


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("api.cluster.example", "*", True),
        ("api.cluster.example", "cluster.example", True),
        ("api.cluster.example", ".cluster.example", True),
        ("api.cluster.example", "*.cluster.example", True),
        ("api.cluster.example", "API.Cluster.Example", True),
        ("api.cluster.example", " other.example , api.cluster.example:6443", True),
        ("api.cluster.example", "api.cluster.example:443", False),
        ("api.cluster.example", ".api.cluster.example", False),
        ("cluster.example", "*.cluster.example", False),
        ("mycluster.example", "cluster.example", False),
        ("api.cluster.example", "*cluster.example,:6443,,10.0.0.0/8", False),
        ("10.96.0.1", "10.0.0.0/8", True),
        ("10.96.0.1", "10.96.0.1", True),
        ("10.96.0.1", "10.96.0.1:6443", True),
        ("10.96.0.1", "10.96.0.1:443", False),
        ("10.96.0.1", ".96.0.1", True),
        ("10.96.0.1", "96.0.1", True),
        ("10.96.0.1", "11.0.0.0/8,10.96.0,6.0.1,10.96.0.0/33", False),
        ("[::ffff:10.96.0.1]", "10.0.0.0/8", True),
        ("[::ffff:10.96.0.1]", "10.96.0.1", True),
        ("[fd00::1]", "fd00::/8", True),
        ("[fd00::1]", "[fd00::1]:6443", True),
        ("[fd00::1]", "fd00::1", True),
        ("[fd00::1]", "10.0.0.0/8,fd01::/16", False),
    ],
)
def test_no_proxy_excepts_hosts_domains_addresses_and_networks(
    host: str, no_proxy: str, direct: bool
) -> None:
    variables = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert (proxies.from_environment(f"https://{host}:6443", variables) is None) == direct


@pytest.mark.parametrize(
    "text",
    ["socks5://proxy.example:1080", "http://", "http://proxy:port", "ftp://x", "http://[", ""],
)
def test_a_proxy_that_cannot_be_used_is_refused_by_whose_it_is(text: str) -> None:
    with pytest.raises(proxies.ProxyError, match=r"^proxy-url names .*: write http://HOST:PORT"):
        proxies.parse(text, "proxy-url")


@pytest.mark.parametrize(
    ("login", "sent"),
    [
        ("me:secret@", "me:secret"),
        ("me%40here:p%3A%2F@", "me@here:p:/"),
        ("me@", "me:"),
        (":token@", ":token"),
    ],
)
def test_a_login_is_sent_as_it_is_meant(login: str, sent: str) -> None:
    proxy = proxies.parse(f"http://{login}proxy.example:3128", "HTTPS_PROXY")
    expected = base64.b64encode(sent.encode()).decode()
    assert proxy.login == {"Proxy-Authorization": f"Basic {expected}"}
    assert "token" not in str(proxy)


def test_a_password_is_never_shown() -> None:
    assert "secret" not in str(proxies.parse("http://me:secret@proxy.example:3128", "HTTPS_PROXY"))
    with pytest.raises(proxies.ProxyError) as refusal:
        proxies.parse("socks5://me:secret@proxy.example:1080", "HTTPS_PROXY")
    assert "socks5://proxy.example:1080" in str(refusal.value)
    assert "forward a port with ssh -L" in str(refusal.value)
    assert "secret" not in str(refusal.value)
