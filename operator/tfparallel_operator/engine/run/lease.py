"""Leader election: the replica of the operator that holds a Lease and renews it reconciles.

No clocks of two machines are compared. The holder counts its time from before it requests a
renewal. The candidates count theirs, which is longer, from when they see the renewal. So the holder
stops before another one starts. Every write is conditional as well.
"""

import asyncio
import dataclasses
import datetime
import logging
import time
from collections.abc import Callable

from tfparallel_operator import wall_clock
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources

_LOG = logging.getLogger(__name__)

RENEWED_WITHIN = 2 / 3
"""Fraction of the lease duration after which a holder that could not renew it stops."""

TRIES = 7.5
"""Renewals, and checks by candidates, per lease duration."""


class Lost(errors.ApiError):
    """This operator no longer holds the lease: it must not write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Terms:
    """A Lease, the name of its holder, and its duration without a renewal."""

    namespace: str
    name: str
    holder: str
    """Name of this operator, unique among those that run."""
    seconds: int
    """The lease duration: after this time without a renewal, a candidate takes the lease."""

    @property
    def path(self) -> str:
        """Address of the Lease."""
        return resources.LEASES.path(self.namespace, self.name)

    @property
    def pause(self) -> float:
        """Seconds between two renewals, or between two checks of a candidate."""
        return self.seconds / TRIES


class Lease:
    """One operator's side of a Lease."""

    def __init__(
        self,
        api: client.Client,
        terms: Terms,
        clock: Callable[[], float] = time.monotonic,
        now: wall_clock.Clock = wall_clock.utc_now,
    ) -> None:
        self._api = api
        self._terms = terms
        self._clock = clock
        self._now = now
        self._lease: client.Object | None = None
        self._seen_at = 0.0
        """When the current version of the Lease was first seen."""
        self._good_until = float("-inf")

    async def acquire(self) -> None:
        """Wait until this operator holds the lease.

        Raises:
            errors.Refused: the operator has no right to read, create or write the Lease.
        """
        reported = ""
        while True:
            try:
                if await self.attempt():
                    _LOG.info("holding Lease %s: this operator acts", self._terms.name)
                    return
            except errors.Unavailable as error:
                _LOG.warning("Lease %s: %s; again soon", self._terms.name, error)
            if reported != self._holder:
                reported = self._holder
                _LOG.info("standing by: Lease %s is held by %s", self._terms.name, reported)
            await asyncio.sleep(self._terms.pause)

    async def keep(self) -> None:
        """Renew the lease forever.

        Raises:
            Lost: another operator holds it, or it could not be renewed in time.
        """
        while True:
            await asyncio.sleep(self._terms.pause)
            await self._renew()

    async def release(self) -> None:
        """Release the lease, so that a candidate need not wait until it expires.

        No write may be pending, and none may follow.
        """
        if self._lease is None or self._holder != self._terms.holder:
            return
        self._good_until = float("-inf")
        free = {"holderIdentity": None, "leaseDurationSeconds": None}
        try:
            async with asyncio.timeout(self._terms.pause):
                while self._holder == self._terms.holder:
                    try:
                        await self._write({**free, "renewTime": _micro_time(self._now())})
                    except errors.Conflict:
                        # A renewal was pending when this operator was stopped.
                        self._see(await self._api.get(self._terms.path))
        except (errors.ApiError, TimeoutError) as error:
            _LOG.info("Lease %s ends by itself: %s", self._terms.name, error)

    def check(self) -> None:
        """Raise `Lost` unless the lease is held at this moment."""
        if self._clock() >= self._good_until:
            raise Lost(
                f"Lease {self._terms.name} has another holder or has expired: nothing is written"
            )

    async def attempt(self) -> bool:
        """Acquire the lease if it is free, or renew it; return whether this operator holds it.

        Raises:
            errors.ApiError: the Lease cannot be read or written.
        """
        if self._lease is None or self._holder != self._terms.holder:
            self._see(await self._read())
        while self._free():
            begun = self._clock()
            try:
                await self._write(self._claim())
            except (errors.Conflict, errors.NotFound):
                self._see(await self._read())  # Another client has written or deleted it.
            else:
                self._good_until = begun + self._terms.seconds * RENEWED_WITHIN
                return True
        return False

    async def _renew(self) -> None:
        """Renew the lease, with at least one try, and as many as the remaining time allows."""
        name, is_held = self._terms.name, True
        while True:
            left = max(self._good_until - self._clock(), self._terms.pause)
            try:
                async with asyncio.timeout(left):
                    is_held = await self.attempt()
            except (errors.ApiError, TimeoutError) as error:
                cause = str(error) or "no answer"
                if self._clock() >= self._good_until:
                    raise Lost(f"Lease {name} could not be renewed in time: {cause}") from error
                _LOG.warning("Lease %s is not renewed: %s; again soon", name, cause)
                await asyncio.sleep(self._terms.pause / 2)
            else:
                break
        if not is_held:
            raise Lost(f"Lease {name} is held by {self._holder or 'nobody'} now, not by us")

    @property
    def _holder(self) -> str:
        """The holder of the lease, as last seen; empty: none."""
        return str(_spec(self._lease).get("holderIdentity") or "")

    def _free(self) -> bool:
        if self._holder in ("", self._terms.holder):
            return True
        seconds = _spec(self._lease).get("leaseDurationSeconds") or self._terms.seconds
        return self._clock() - self._seen_at >= float(seconds)

    def _claim(self) -> client.Object:
        """Return the spec with which this operator acquires or renews the lease."""
        now, old = _micro_time(self._now()), _spec(self._lease)
        claim = {
            "holderIdentity": self._terms.holder,
            "leaseDurationSeconds": self._terms.seconds,
            "renewTime": now,
        }
        if self._holder == self._terms.holder:
            return claim
        before = int(old.get("leaseTransitions") or 0)
        return {**claim, "acquireTime": now, "leaseTransitions": before + bool(old)}

    async def _write(self, change: client.Object) -> None:
        lease = self._lease or {}
        condition = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        self._see(await self._api.patch(self._terms.path, {"metadata": condition, "spec": change}))

    async def _read(self) -> client.Object:
        """Read the Lease, and create it if it doesn't exist."""
        terms = self._terms
        try:
            return await self._api.get(terms.path)
        except errors.NotFound:
            metadata = {
                "name": terms.name,
                "namespace": terms.namespace,
                "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
            }
            manifest = {
                "apiVersion": resources.LEASES.api_version,
                "kind": "Lease",
                "metadata": metadata,
            }
        try:
            return await self._api.create(resources.LEASES, terms.namespace, manifest)
        except errors.AlreadyExists:
            return await self._api.get(terms.path)
        except errors.Refused as error:
            raise errors.Refused(
                f"Lease {terms.name} is not in namespace {terms.namespace} and may not be made "
                "there: install it again, it is part of the chart and of manifests/",
                status=error.status,
            ) from error

    def _see(self, lease: client.Object) -> None:
        if self._lease is None or _spec(self._lease) != _spec(lease):
            self._seen_at = self._clock()
        self._lease = lease


def _spec(lease: client.Object | None) -> client.Object:
    return dict((lease or {}).get("spec") or {})


def _micro_time(moment: datetime.datetime) -> str:
    """Format a time as a MicroTime, with six digits of a second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
