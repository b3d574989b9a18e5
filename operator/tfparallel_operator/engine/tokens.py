"""Who holds a token: the API server is asked, and its answer kept for a minute."""

import collections
import hashlib
import time
from collections.abc import Callable

from tfparallel_operator.engine import client, resources

VALID_SECONDS = 60.0
"""How long a token that was found good is believed."""

INVALID_SECONDS = 10.0
"""How long one that was found bad is not asked about again."""

MOST = 10_000
"""Answers that are kept; the oldest go first."""

POD_UID = "authentication.kubernetes.io/pod-uid"
"""Where the API server says which pod a token is bound to."""


class Tokens:
    """Finds the pod that a bearer token was given to."""

    def __init__(self, api: client.Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: collections.OrderedDict[str, tuple[float, str | None]] = (
            collections.OrderedDict()
        )

    async def pod_uid(self, token: str, audience: str) -> str | None:
        """Return the uid of the token's pod; None when it is not good for the audience.

        Raises:
            errors.ApiError: the API server cannot be asked.
        """
        # The token itself is not kept.
        key = hashlib.sha256(f"{audience}\n{token}".encode()).hexdigest()
        known = self._known.get(key)
        if known is not None and known[0] > self._clock():
            return known[1]
        found = await self._review(token, audience)
        lifetime = INVALID_SECONDS if found is None else VALID_SECONDS
        self._known[key] = (self._clock() + lifetime, found)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found

    async def _review(self, token: str, audience: str) -> str | None:
        review = {
            "apiVersion": resources.TOKEN_REVIEWS.api_version,
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._api.create(resources.TOKEN_REVIEWS, None, review)
        status = answer.get("status") or {}
        if not status.get("authenticated") or audience not in status.get("audiences", ()):
            return None
        extra = status.get("user", {}).get("extra") or {}
        uids = extra.get(POD_UID) or ()
        return str(uids[0]) if uids else None
