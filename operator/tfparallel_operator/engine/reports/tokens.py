"""Finds the pod of a token by a TokenReview of the API server, and caches the answer for a minute.

Anybody may send anything. A string that cannot be a token of a job is refused without a request to
the API server. Each source address has one review at a time, so a source that sends many tokens
delays only itself.
"""

import asyncio
import base64
import binascii
import collections
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources

VALID_SECONDS = 60.0
"""How long a valid token is cached."""

INVALID_SECONDS = 10.0
"""How long an invalid token is cached."""

MAX_REVIEWS = 4
"""Maximum number of concurrent reviews, so that most slots of the client stay free for jobs."""

MAX_WAITING = 256
"""Maximum number of queued tokens of all sources. The sender of another one must retry later."""

MAX_WAITING_OF_SOURCE = 16
"""The same for each source."""

MOST = 10_000
"""Maximum number of cached answers; the oldest are removed first."""

POD_UID = "authentication.kubernetes.io/pod-uid"
"""The extra field of a review that contains the uid of the token's pod."""

_ACCOUNT = "system:serviceaccount:"
"""Prefix of the user name of a token; the namespace of the pod follows."""

_AUDIENCE = re.compile(rf"{re.escape(names.GROUP)}/[A-Za-z0-9._-]{{1,128}}")


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPod:
    """The pod that a token is bound to."""

    namespace: str
    uid: str


@dataclasses.dataclass(slots=True)
class _Source:
    """The reviews of one source address."""

    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    queued: int = 0


class Tokens:
    """Finds the pod that a bearer token was given to."""

    def __init__(self, api: client.Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._cache: collections.OrderedDict[str, tuple[float, TokenPod | None]] = (
            collections.OrderedDict()
        )
        self._slots = asyncio.Semaphore(MAX_REVIEWS)
        self._sources: dict[str, _Source] = {}

    async def find_pod(self, token: str, audience: str, source: str) -> TokenPod | None:
        """Return the token's pod; None: the token is not valid for the audience.

        Args:
            token: the token.
            audience: the audience that it must have.
            source: the address of the sender.

        Raises:
            errors.ApiError: the review failed, or too many tokens are queued.
        """
        if audience not in audiences(token):
            return None
        # The token itself is not kept.
        key = hashlib.sha256(f"{audience}\n{token}".encode()).hexdigest()
        if not self._knows(key):
            await self._ask(key, token, audience, source)
        return self._cache[key][1]

    def _knows(self, key: str) -> bool:
        return key in self._cache and self._cache[key][0] > self._clock()

    async def _ask(self, key: str, token: str, audience: str, source: str) -> None:
        queued = sum(source.queued for source in self._sources.values())
        state = self._sources.get(source, _Source())
        if queued >= MAX_WAITING or state.queued >= MAX_WAITING_OF_SOURCE:
            raise errors.Unavailable(f"{queued} other tokens are being checked")
        self._sources[source] = state
        state.queued += 1
        try:
            async with state.turn:
                if not self._knows(key):
                    async with self._slots:
                        self._keep(key, await self._review(token, audience))
        finally:
            state.queued -= 1
            if not state.queued:
                del self._sources[source]

    def _keep(self, key: str, pod: TokenPod | None) -> None:
        lifetime = INVALID_SECONDS if pod is None else VALID_SECONDS
        self._cache[key] = (self._clock() + lifetime, pod)
        self._cache.move_to_end(key)
        while len(self._cache) > MOST:
            self._cache.popitem(last=False)

    async def _review(self, token: str, audience: str) -> TokenPod | None:
        review = {
            "apiVersion": resources.TOKEN_REVIEWS.api_version,
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._api.create(resources.TOKEN_REVIEWS, None, review)
        status = answer.get("status") or {}
        if not status.get("authenticated") or audience not in status.get("audiences", ()):
            return None
        user = status.get("user") or {}
        account, uids = str(user.get("username", "")), (user.get("extra") or {}).get(POD_UID)
        if not uids or not account.startswith(_ACCOUNT):
            return None
        return TokenPod(account.removeprefix(_ACCOUNT).partition(":")[0], str(uids[0]))


def audiences(token: str) -> tuple[str, ...]:
    """Return the audiences of jobs that a token claims, unverified; empty: it is not a token."""
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():
        return ()
    payload = parts[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        claimed = claims["aud"]
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        return ()
    listed = [claimed] if isinstance(claimed, str) else claimed
    if not isinstance(listed, list):
        return ()
    return tuple(
        audience
        for audience in listed
        if isinstance(audience, str) and _AUDIENCE.fullmatch(audience)
    )
