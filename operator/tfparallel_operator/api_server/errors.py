"""Errors of requests to the API server."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class InvalidField:
    """A field that the API server refuses."""

    field: str
    """The path of the field; empty: the object as a whole."""
    message: str


class ApiError(Exception):
    """A request that failed. The message is the API server's."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
        causes: tuple[InvalidField, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.causes = causes


class NotFound(ApiError):  # noqa: N818 (names of answers, not of bugs)
    """The object does not exist."""


class Conflict(ApiError):  # noqa: N818
    """The object has changed since it was read, or has another uid."""


class AlreadyExists(ApiError):  # noqa: N818
    """An object with this name exists."""


class Expired(ApiError):  # noqa: N818
    """The resource version is too old to watch from: list again."""


class Invalid(ApiError):  # noqa: N818
    """The object is invalid, so a retry would fail, too."""


class Refused(ApiError):  # noqa: N818
    """Forbidden for now: a quota, a policy or missing rights."""


class Unavailable(ApiError):  # noqa: N818
    """No response, or one that asks to retry later."""


class WebhookFailed(Unavailable):
    """The API server refuses the request because a webhook does not answer."""


_BY_STATUS = {
    400: Invalid,
    403: Refused,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
}


_WHOLE = "<nil>"
"""The field of a cause for the object as a whole."""
_UNCHECKED = "some validation rules were not checked because the object was invalid"
"""A cause without a fault, which the API server adds to the others."""

_DENIED = ("denied the request", "denied request")
"""Phrases of admission webhooks and policies. They may respond with any status. Unlike an invalid
object, they may admit the object later."""

_FAILED_WEBHOOK = "failed calling webhook"


def from_answer(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """Return the error for a response of the API server.

    Args:
        status: the HTTP status, or the code of an ERROR event.
        body: the `Status` object of the response; empty: it has none.
        retry_after: seconds after which the API server allows a retry.
    """
    reason = str(body.get("reason", ""))
    message = str(body.get("message") or f"the API server answered with HTTP status {status}")
    if reason == "AlreadyExists":
        kind: type[ApiError] = AlreadyExists
    elif any(phrase in message for phrase in _DENIED):
        kind = Refused
    elif _FAILED_WEBHOOK in message:
        kind = WebhookFailed
    else:
        kind = _BY_STATUS.get(status, Unavailable)
    return kind(
        message, status=status, reason=reason, retry_after=retry_after, causes=_causes(body)
    )


def _causes(body: Mapping[str, Any]) -> tuple[InvalidField, ...]:
    listed = (body.get("details") or {}).get("causes") or ()
    fields = ((str(cause.get("field", "")), str(cause.get("message", ""))) for cause in listed)
    return tuple(
        InvalidField("" if field == _WHOLE else field, message)
        for field, message in fields
        if _UNCHECKED not in message
    )
