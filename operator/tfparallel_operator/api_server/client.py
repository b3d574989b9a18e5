"""A client of the API server: few verbs, every write conditional.

aiohttp and orjson take a sixth of the CPU time of the generated clients. An event of a watch
becomes a dict and nothing more. Nothing here sleeps or tries again: errors go to the caller, which
knows whether the request still matters.
"""

import asyncio
import contextlib
import io
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from tfparallel_operator.api import names
from tfparallel_operator.api_server import answers, credentials, errors, lists, resources, streams

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

WATCH_SILENCE_SECONDS = 70.0
"""A watch without data for this time is dead, because bookmarks come each minute."""

REQUEST_SECONDS = 90.0
"""Maximum duration of a request that is not a stream; the API server's own limit is a minute."""

WATCH_SECONDS = (300, 600)
"""Range of the random duration of a watch, so that not all watches end at the same time."""

MAX_IN_FLIGHT = 32
"""Maximum number of concurrent requests, without watches."""

LARGE_BODY_BYTES = 2**20
"""Size of a body, such as the files of a job, above which aiohttp warns about bytes."""

JSON = "application/json"
METADATA_JSON = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST_JSON = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_METHODS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "delete": "DELETE",
    "patch": "PATCH",
    "apply": "PATCH",
}

Called = Callable[[str, str, int, float | None], None]
"""Called after every request: verb, plural of the resource, HTTP status, seconds.

Status 0: no response. Seconds None: a watch, whose duration isn't measured."""


class Client(lists.Lists):
    """Talks to one API server; an asynchronous context manager."""

    def __init__(
        self,
        access: credentials.Access,
        *,
        watch_silence: float = WATCH_SILENCE_SECONDS,
        called: Called | None = None,
        manager: str = names.FIELD_MANAGER,
    ) -> None:
        self._access = access
        self._manager = manager
        self._watch_silence = watch_silence
        self._called = called
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def __aenter__(self) -> Self:
        self._session = self._access.session()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def access(self) -> credentials.Access:
        """The address and the credentials of the API server."""
        return self._access

    async def get(self, path: str, *, metadata_only: bool = False) -> Object:
        """Read one object, or its metadata alone, or any other document."""
        return await self._request("get", path, accept=METADATA_JSON if metadata_only else JSON)

    async def served(self, resource: resources.Resource) -> resources.Resource:
        """Return a resource in the newest version that the API server serves.

        Raises:
            errors.NotFound: it serves none of its versions.
            errors.ApiError: the request failed.
        """
        if not resource.older:
            return resource
        for version in (resource.api_version, *resource.older):
            with contextlib.suppress(errors.NotFound):
                kinds = (await self.get(f"/apis/{version}")).get("resources") or ()
                if any(kind["name"] == resource.plural for kind in kinds):
                    return resource.at(version)
        raise errors.NotFound(f"the API server serves no {resource.plural} of {resource.group}")

    async def page(
        self,
        resource: resources.Resource,
        namespace: str | None,
        selector: str = "",
        continue_token: str = "",
        fields: str = "",
        *,
        metadata_only: bool = False,
        limit: int = answers.PAGE,
    ) -> lists.Listing:
        """Read one page; the previous page gives its continue token.

        Raises:
            answers.PageTooLargeError: it has to be read again with a lower limit.
        """
        query = {"limit": str(limit), **_selectors(selector, fields)}
        query |= {"continue": continue_token} if continue_token else {}
        accept = METADATA_LIST_JSON if metadata_only else JSON
        answer = await self._request("list", resource.path(namespace), query, accept=accept)
        metadata = answer["metadata"]
        continue_token = metadata.get("continue", "")
        items = tuple(answer["items"] or ())
        return lists.Listing(
            items, metadata["resourceVersion"], continue_token, answer.get("size", 0)
        )

    async def watch(
        self,
        resource: resources.Resource,
        namespace: str | None,
        version: str,
        selector: str = "",
        fields: str = "",
        *,
        metadata_only: bool = False,
    ) -> AsyncIterator[streams.WatchEvent]:
        """Yield the events after a resource version, until the API server ends the watch.

        Raises:
            errors.Expired: the version is too old; list again.
            errors.Unavailable: the connection failed, or was silent for too long.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 (no secret)
            **_selectors(selector, fields),
        }
        timeout = aiohttp.ClientTimeout(
            sock_connect=credentials.CONNECT_TIMEOUT_SECONDS, sock_read=self._watch_silence
        )
        url = self._access.server + resource.path(namespace)
        headers = {"Accept": METADATA_JSON if metadata_only else JSON}
        answered = False
        try:
            async with self._http.get(
                url, params=query, headers=headers, timeout=timeout
            ) as response:
                answered = True
                self._count("watch", resource.plural, response.status)
                await answers.raise_for_status(response)
                async for line in streams.read_lines(response.content):
                    yield streams.parse_event(line, resource)
        except (aiohttp.ClientError, TimeoutError) as error:
            if not answered:
                self._count("watch", resource.plural, 0)
            raise errors.Unavailable(_no_answer("watch", resource.plural, error)) from error

    async def read_log(
        self, namespace: str, pod: str, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        """Read the log of a container line by line, without line ends.

        Args:
            namespace: of the pod.
            pod: name of the pod.
            query: parameters of the request, such as container, follow and tailLines.

        Raises:
            errors.Unavailable: the connection failed.
        """
        path = resources.PODS.path(namespace, pod, "log")
        timeout = aiohttp.ClientTimeout(sock_connect=credentials.CONNECT_TIMEOUT_SECONDS)
        try:
            async with self._http.get(
                self._access.server + path, params=query, timeout=timeout
            ) as response:
                await answers.raise_for_status(response)
                async for line in streams.read_lines(response.content):
                    yield line
        except (aiohttp.ClientError, TimeoutError) as error:
            raise errors.Unavailable(_no_answer("GET", path, error)) from error

    async def create(
        self,
        resource: resources.Resource,
        namespace: str | None,
        manifest: Mapping[str, Any],
        *,
        metadata_only: bool = False,
    ) -> Object:
        """Create an object. Unknown fields are an error.

        With `metadata_only` the response contains the metadata alone, which saves time on both
        sides.
        """
        query = {"fieldManager": self._manager, "fieldValidation": "Strict"}
        accept = METADATA_JSON if metadata_only else JSON
        return await self._request(
            "create", resource.path(namespace), query, manifest, accept=accept
        )

    async def check(
        self, resource: resources.Resource, namespace: str | None, manifest: Mapping[str, Any]
    ) -> Object:
        """Return the object that `create` would store, without storing it."""
        query = {
            "fieldManager": self._manager,
            "fieldValidation": "Strict",
            "dryRun": "All",
        }
        return await self._request("create", resource.path(namespace), query, manifest)

    async def delete(
        self,
        resource: resources.Resource,
        namespace: str,
        name: str,
        uid: str,
        version: str | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Delete an object, if it still has the uid (and the version).

        With `force` a pod is removed at once, without waiting for its node.
        """
        conditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        options: Object = {"preconditions": conditions, "propagationPolicy": "Background"}
        if force:
            options["gracePeriodSeconds"] = 0
        await self._request("delete", resource.path(namespace, name), {}, options)

    async def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        """Merge a patch into an object. Its `metadata.resourceVersion`, if any, is a condition."""
        query = {"fieldManager": self._manager}
        return await self._request("patch", path, query, change, MERGE_PATCH)

    async def apply(self, path: str, manifest: Mapping[str, Any], manager: str) -> Object:
        """Apply a manifest by server-side apply, and own its fields."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._request("apply", path, query, manifest, APPLY_PATCH)

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside of its `async with` block")
        return self._session

    async def _request(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        data = None if body is None else _payload(orjson.dumps(body))
        headers = {"Accept": accept, **({} if data is None else {"Content-Type": content_type})}
        method, url = _METHODS[verb], self._access.server + path
        async with self._slots:
            status, begun = 0, time.perf_counter()
            try:
                async with (
                    asyncio.timeout(REQUEST_SECONDS),
                    self._http.request(
                        method, url, params=query, data=data, headers=headers
                    ) as response,
                ):
                    status = response.status
                    await answers.raise_for_status(response)
                    plural, limit = resources.plural_of(path), int((query or {}).get("limit", 0))
                    return await answers.read(response, verb, plural, limit)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise errors.Unavailable(_no_answer(method, path, error)) from error
            finally:
                seconds = time.perf_counter() - begun
                self._count(verb, resources.plural_of(path), status, seconds)

    def _count(self, verb: str, plural: str, status: int, seconds: float | None = None) -> None:
        if self._called is not None:
            self._called(verb, plural, status, seconds)


def _payload(content: bytes) -> bytes | io.BytesIO:
    """Return a body in a form that aiohttp sends without a warning: a large one as a file."""
    return content if len(content) <= LARGE_BODY_BYTES else io.BytesIO(content)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {name: text for name, text in selectors.items() if text}


def _no_answer(method: str, path: str, error: Exception) -> str:
    cause = str(error) or type(error).__name__
    return f"no answer from the API server to {method} {path}: {cause}"
