"""The client against a server that misbehaves on purpose."""

import asyncio
import pathlib
import ssl
from asyncio import sslproto
from collections.abc import Callable

import pytest
import yaml
from aiohttp import web

from testing import clock
from testing.cluster import pki
from testing.operator import operator_process, scripted_server
from tfparallel_operator import main
from tfparallel_operator.api import gate
from tfparallel_operator.api_server import answers, client, credentials, errors, resources, streams


async def _watch(api: client.Client, version: str = "1") -> list[streams.WatchEvent]:
    return [event async for event in api.watch(resources.PODS, None, version, "a=b")]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 413, 422, 429, 500])
def test_a_webhook_denies_with_any_status(status: int) -> None:
    message = 'admission webhook "pods.example.com" denied the request: no pods today'
    assert isinstance(errors.from_answer(status, {"message": message}), errors.Refused)


def test_a_webhook_that_does_not_answer_is_told_from_other_failures() -> None:
    message = 'Internal error occurred: failed calling webhook "pods.example.com": refused'
    error = errors.from_answer(500, {"message": message})
    assert isinstance(error, errors.WebhookFailed)
    other = errors.from_answer(500, {"message": "etcdserver: leader changed"})
    assert not isinstance(other, errors.WebhookFailed)


async def test_a_list_is_read_page_by_page() -> None:
    async with scripted_server.serving() as server, server.client() as api:
        first = scripted_server.listing(7, {"metadata": {"name": "a"}}, go_on="more")
        second = scripted_server.listing(7, {"metadata": {"name": "b"}})
        server.script = [scripted_server.document(first), scripted_server.document(second)]
        pods = await api.list(resources.PODS, "default", "a=b")
        assert [item["metadata"]["name"] for item in pods.items] == ["a", "b"]
        assert pods.version == "7"
        queries = [dict(request.query) for request in server.requests]
        assert queries[0] == {"limit": "200", "labelSelector": "a=b"}
        assert queries[1] == {**queries[0], "continue": "more"}


async def test_a_watch_yields_events_and_bookmarks_however_they_are_cut_into_chunks() -> None:
    added = scripted_server.event("ADDED", 2, padding="x" * 300_000)
    bookmark = scripted_server.event("BOOKMARK", 9)
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [
            scripted_server.stream(added[:100], added[100:] + bookmark[:5], bookmark[5:])
        ]
        events = await _watch(api)
        assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
        assert events[1].object["metadata"]["resourceVersion"] == "9"
        query = server.requests[0].query
        assert query["allowWatchBookmarks"] == "true"
        assert query["resourceVersion"] == "1"
        assert query["labelSelector"] == "a=b"


async def test_a_watch_that_is_cut_in_a_line_says_so_and_yields_no_half_event() -> None:
    whole = scripted_server.event("ADDED", 2)
    kinds = []
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.stream(whole, whole[:20], then="cut")]
        with pytest.raises(errors.Unavailable, match="no answer from the API server to watch pods"):
            async for event in api.watch(resources.PODS, None, "1"):
                kinds += [event.type]
    assert kinds == ["ADDED"]


async def test_a_silent_watch_is_abandoned() -> None:
    async with scripted_server.serving() as server, server.client(watch_silence=0.1) as api:
        server.script = [scripted_server.stream(then="silence")]
        with pytest.raises(errors.Unavailable):
            await _watch(api)


async def test_a_request_without_end_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS", 0.1)
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.stream(then="silence")]
        with pytest.raises(errors.Unavailable, match="no answer from the API server to GET"):
            await api.get("/version")


@pytest.mark.parametrize("inside", [True, False])
async def test_a_version_that_is_too_old_is_recognized(inside: bool) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    line = b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old"}}\n'
    answer = scripted_server.stream(line) if inside else scripted_server.document(status, 410)
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [answer]
        with pytest.raises(errors.Expired, match="too old"):
            await _watch(api)


async def test_a_watch_line_that_is_not_json_is_an_error_of_the_server() -> None:
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.stream(b"<html>\n")]
        with pytest.raises(errors.Unavailable, match="not JSON"):
            await _watch(api)


async def test_a_busy_server_says_when_to_come_again() -> None:
    body = {"message": "too many requests, please try again later"}
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.document(body, 429, **{"Retry-After": "7"})]
        with pytest.raises(errors.Unavailable, match="too many requests") as caught:
            await api.get("/version")
        assert caught.value.retry_after == 7.0
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1000000000", 60.0), ("9" * 5_000, 60.0), ("Fri, 27 Nov 2099 00:00:00 GMT", None)],
)
async def test_a_busy_server_cannot_have_the_client_wait_for_long(
    text: str, seconds: float | None
) -> None:
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.document({}, 429, **{"Retry-After": text})]
        with pytest.raises(errors.Unavailable) as caught:
            await api.get("/version")
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_the_token_stays(status: int) -> None:
    """The page of a login would answer in its place, and a list of it may have no items."""
    async with scripted_server.serving() as server, scripted_server.serving() as other:
        other.script = [scripted_server.document(scripted_server.listing(7))]
        server.script = [scripted_server.document({}, status, Location=other.url)]
        async with server.client(lambda: "secret") as api:
            with pytest.raises(errors.Unavailable, match=f"HTTP status {status}, a redirect"):
                await api.list(resources.PODS, None)
            with pytest.raises(errors.Unavailable, match="a redirect"):
                await api.create(resources.PODS, "team", {})
            with pytest.raises(errors.Unavailable, match="a redirect"):
                await _watch(api)
    assert other.requests == []


_FAILURE = {"kind": "Status", "status": "Failure", "code": 500, "message": "etcd is away"}
_VERSION = {"resourceVersion": "7"}


@pytest.mark.parametrize(
    "document",
    [
        *(None, [], "login", 7, {}, {"metadata": None, "items": []}, _FAILURE),
        {**_FAILURE, "code": None},
        {"metadata": {"resourceVersion": "x", "name": "a"}, "items": []},
        {"metadata": {"resourceVersion": 7, "name": "a"}, "items": []},
        {"metadata": _VERSION},
        {"metadata": _VERSION, "items": {}},
        {"metadata": _VERSION, "items": [None]},
        {"metadata": _VERSION, "items": [{}]},
    ],
    ids=str,
)
async def test_an_answer_that_no_api_server_gives_is_an_error_and_no_bug(document: object) -> None:
    pod, job = resources.PODS.path("team", "a"), resources.JOBS.path("team", "a")
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.document(document)]
        for request in (
            lambda: api.list(resources.PODS, None),
            lambda: api.list(resources.JOBS, None),
            lambda: api.current_version(resources.PODS, None),
            lambda: api.current_version(resources.JOBS, None),
            lambda: api.get(pod),
            lambda: api.patch(pod, {}),
            lambda: api.get(job),
        ):
            with pytest.raises(errors.Unavailable):
                await request()


@pytest.mark.parametrize("resource", [resources.PODS, resources.JOBS])
@pytest.mark.parametrize(
    "line",
    [
        *("null", "[]", "7", "{}", '{"type":"ADDED"}', '{"type":"ADDED","object":null}'),
        *('{"type":"ADDED","object":{}}', '{"type":"ADDED","object":{"metadata":null}}'),
        '{"type":"ADDED","object":{"metadata":{"name":"a"}}}',
        '{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"?"}}}',
        '{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"}}}',
        '{"object":{"metadata":{"name":"a","resourceVersion":"7"}}}',
        *('{"type":"BOOKMARK","object":{}}', '{"type":"ERROR","object":null}'),
        '{"type":"ERROR","object":{"code":null}}',
    ],
)
async def test_an_event_that_no_api_server_sends_is_an_error_and_no_bug(
    line: str, resource: resources.Resource
) -> None:
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.stream(line.encode() + b"\n")]
        with pytest.raises(errors.Unavailable):
            async for _ in api.watch(resource, None, "1"):
                pass


async def test_large_objects_are_read_in_small_pages() -> None:
    large = {"metadata": {"name": "a"}, "spec": "x" * (answers.PAGE_BYTES // 2)}
    page = scripted_server.listing(7, large, large, large)
    alone = [scripted_server.listing(7, large, go_on="b"), scripted_server.listing(7, large)]
    async with scripted_server.serving() as server, server.client() as api:
        server.script = list(map(scripted_server.document, (page, page, *alone)))
        listing = await api.list(resources.PODS, None)
        limits = [int(request.query["limit"]) for request in server.requests]
    assert len(listing.items) == 2
    assert limits == [200, 25, 3, 1]


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (403, "Forbidden", errors.Refused),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (422, "Invalid", errors.Invalid),
        (500, "InternalError", errors.Unavailable),
    ],
)
async def test_each_answer_has_a_distinct_error_with_the_servers_sentence(
    status: int, reason: str, kind: type[errors.ApiError]
) -> None:
    body = {"kind": "Status", "reason": reason, "message": "what is wrong"}
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.document(body, status)]
        with pytest.raises(errors.ApiError, match="what is wrong") as caught:
            await api.get("/version")
        assert type(caught.value) is kind
        assert caught.value.status == status


async def test_a_proxys_page_is_an_error_with_its_status() -> None:
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [scripted_server.text("<html>bad gateway</html>", 502)]
        with pytest.raises(errors.Unavailable, match="HTTP status 502"):
            await api.get("/version")


async def test_no_server_at_all_is_unavailable() -> None:
    async with scripted_server.serving() as server:
        api = server.client()
    async with api:
        with pytest.raises(errors.Unavailable, match="no answer from the API server to GET"):
            await api.get("/version")


async def test_the_token_is_read_again_after_a_minute_and_after_a_refusal() -> None:
    tokens = iter(["one", "two", "three"])
    time = clock.Clock()
    token = credentials.Token(lambda: next(tokens), clock=time)
    assert await token.header() == {"Authorization": "Bearer one"}
    time.now = 59.0
    assert await token.header() == {"Authorization": "Bearer one"}
    time.now = 61.0
    assert await token.header() == {"Authorization": "Bearer two"}
    token.forget({"Authorization": "Bearer one"})
    assert await token.header() == {"Authorization": "Bearer two"}
    token.forget({"Authorization": "Bearer two"})
    assert await token.header() == {"Authorization": "Bearer three"}


async def test_of_many_refused_requests_one_logs_in() -> None:
    logins: list[str] = []
    token = credentials.Token(lambda: f"token-{len(logins)}", log_in=lambda: logins.append("again"))
    old = await token.header()

    async def refuse() -> dict[str, str]:
        token.forget(old)
        return await token.header()

    headers = await asyncio.gather(*(refuse() for _ in range(10)))
    assert headers == [{"Authorization": "Bearer token-1"}] * 10
    assert len(logins) == 1


async def test_a_read_is_repeated_once_with_the_token_that_replaces_a_refused_one() -> None:
    tokens = iter(["old", "new", "new"])
    async with scripted_server.serving() as server, server.client(lambda: next(tokens)) as api:
        refused = scripted_server.document({"message": "Unauthorized"}, 401)
        server.script = [refused, scripted_server.document({"major": "1"}), refused]
        assert await api.get("/version") == {"major": "1"}
        with pytest.raises(errors.Unavailable, match="Unauthorized"):
            await api.get("/version")
        del server.requests[2:]
        sent = [request.headers["Authorization"] for request in server.requests]
        assert sent == ["Bearer old", "Bearer new"]


async def test_no_more_requests_are_sent_at_once_than_agreed() -> None:
    busy, most = 0, 0
    full = asyncio.Event()

    async def slow(_: web.Request) -> web.StreamResponse:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == client.MAX_IN_FLIGHT:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)  # one more could come now
        busy -= 1
        return web.json_response({})

    async with scripted_server.serving() as server, server.client() as api:
        server.script = [slow]
        await asyncio.gather(*(api.get("/version") for _ in range(3 * client.MAX_IN_FLIGHT)))
    assert most == client.MAX_IN_FLIGHT


def test_without_a_service_account_the_sentence_says_what_to_give(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(credentials.CredentialsError, match="give --kubeconfig"):
        credentials.find(None, tmp_path)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "nowhere")
    with pytest.raises(credentials.CredentialsError, match=f"kubeconfig '{path}' cannot be used"):
        credentials.find(path)


async def test_a_service_account_is_used_inside_a_cluster(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = pki.Authority(tmp_path / "keys")
    (tmp_path / "ca.crt").write_bytes(authority.ca.certificate.read_bytes())
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("training")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    access = credentials.find(None, tmp_path)
    assert access.server == "https://[fd00::1]:6443"
    assert await access.token.header() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    access.token.forget(await access.token.header())
    assert await access.token.header() == {"Authorization": "Bearer second"}
    assert credentials.own_namespace(tmp_path) == "training"


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"), [("", False), ("10.96.0.0/12", True), ("10.97.0.1", False)]
)
def test_inside_a_cluster_the_environment_names_a_proxy_as_for_other_clients(
    no_proxy: str, is_direct: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = pki.Authority(tmp_path / "keys")
    (tmp_path / "ca.crt").write_bytes(authority.ca.certificate.read_bytes())
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (credentials.find(None, tmp_path).proxy is None) == is_direct


async def test_a_connection_keeps_a_buffer_of_the_size_that_the_operator_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attribute is asyncio's own: a Python that drops it would waste memory in silence."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", main.TLS_READ_BYTES)
    loop, context = asyncio.get_running_loop(), ssl.create_default_context()
    protocol = sslproto.SSLProtocol(
        loop, asyncio.Protocol(), context, loop.create_future(), server_hostname="localhost"
    )
    assert len(protocol.get_buffer(2**30)) == main.TLS_READ_BYTES
    protocol._app_transport.abort()


def _jobs(*texts: str, go_on: str = "") -> scripted_server.Answer:
    """Answer with a page of jobs, as an API server writes it."""
    end = f'"kind":"TFParallelJobList","metadata":{{"continue":"{go_on}","resourceVersion":"7"}}'
    text = f'{{"apiVersion":"v","items":[{",".join(texts)}],{end}}}\n'

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=text.encode())

    return answer


def _job(name: str, value: str = "1") -> str:
    metadata = f'"metadata":{{"name":"{name}","namespace":"team","uid":"u"}}'
    return f'{{"apiVersion":"v","kind":"k",{metadata},"spec":{{"x":{value}}}}}'


@pytest.mark.parametrize(
    "hostile", ["[" * 1_100 + "]" * 1_100, f'"{"x" * answers.PAGE_BYTES}"'], ids=["deep", "large"]
)
async def test_one_job_that_cannot_be_read_costs_a_list_no_other_job(hostile: str) -> None:
    both = _jobs(_job("a"), _job("b", hostile))
    async with scripted_server.serving() as server, server.client() as api:
        server.script = [both, _jobs(_job("a"), go_on="b"), _jobs(_job("b", hostile))]
        if len(hostile) > answers.PAGE_BYTES:  # a page of fewer is tried first
            server.script.insert(0, both)
        listing = await api.list(resources.JOBS, "team")
        limits = [int(request.query["limit"]) for request in server.requests]
    names = [item["metadata"]["name"] for item in listing.items]
    assert (names, listing.version) == (["a", "b"], "7")
    assert [gate.PROBLEM in item for item in listing.items] == [False, True]
    assert limits[0] == answers.FIRST_PAGE
    assert 1 in limits


async def test_pages_of_small_jobs_grow_and_those_of_large_jobs_do_not() -> None:
    size = answers.PageSize()
    size.learn(20, 20_000)
    assert size.limit == 160
    size.learn(160, 160_000)
    assert size.limit == answers.PAGE
    size.learn(200, answers.PAGE_BYTES)
    assert size.limit == 100
    size.shrink(answers.PageTooLargeError(answers.PAGE_BYTES))
    assert size.limit == 12
    size.shrink(answers.PageTooLargeError(0))
    assert size.limit == 1


def _of_pod(
    server: scripted_server.Server, authority: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> credentials.Access:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    (authority.parent / "token").write_text("secret")
    return credentials.find(None, authority.parent)


def _of_kubeconfig(
    server: scripted_server.Server, authority: pathlib.Path, _: pytest.MonkeyPatch
) -> credentials.Access:
    path = operator_process.write_kubeconfig(server.url, authority.parent)
    content = yaml.safe_load(path.read_text())
    content["clusters"][0]["cluster"]["certificate-authority"] = str(authority)
    path.write_text(yaml.safe_dump(content))
    return credentials.find(str(path))


@pytest.mark.parametrize("find", [_of_pod, _of_kubeconfig])
async def test_an_authority_that_replaces_another_is_trusted_and_the_other_no_more(
    find: Callable[..., credentials.Access], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (pki.Authority(tmp_path / name) for name in ("old", "new"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def certify(authority: pki.Authority) -> None:
        pair = authority.issue("server", "api", hosts=["127.0.0.1"])
        tls.load_cert_chain(pair.certificate, pair.key)

    certify(old)
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(old.ca.certificate.read_bytes())
    async with scripted_server.serving(tls) as server:
        server.script = [scripted_server.document({"major": "1"}, Connection="close")]
        async with client.Client(find(server, trusted, monkeypatch)) as api:
            assert await api.get("/version") == {"major": "1"}
            certify(new)
            with pytest.raises(errors.Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await api.get("/version")
            trusted.write_bytes(new.ca.certificate.read_bytes())
            assert await api.get("/version") == {"major": "1"}
            trusted.write_text("half of a")
            assert await api.get("/version") == {"major": "1"}
            certify(old)
            with pytest.raises(errors.Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await api.get("/version")
