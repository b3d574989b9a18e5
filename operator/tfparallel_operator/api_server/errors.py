"""What the API server answers when it does not do what it was asked for."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """A field that the API server refuses."""

    field: str
    """Its path; empty: the object as a whole."""
    message: str


class ApiError(Exception):
    """A request that did not succeed; the text is the API server's own sentence."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
        causes: tuple[Cause, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.causes = causes


class NotFound(ApiError):  # noqa: N818 (names of answers, not of bugs)
    """The object is not there."""


class Conflict(ApiError):  # noqa: N818
    """The object has changed since it was read, or carries another uid."""


class AlreadyExists(ApiError):  # noqa: N818
    """An object of that name is there."""


class Expired(ApiError):  # noqa: N818
    """The resource version is too old to go on from: list again."""


class Invalid(ApiError):  # noqa: N818
    """The object is wrong as it is: sending it again would fail again."""


class Refused(ApiError):  # noqa: N818
    """Not allowed now: a quota, a policy or missing rights."""


class Unavailable(ApiError):  # noqa: N818
    """No answer, or one that says to try later."""


class WebhookFailed(Unavailable):
    """A webhook does not answer the API server, which refuses the request therefore."""


_BY_STATUS = {
    400: Invalid,
    403: Refused,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
}


_WHOLE = "<nil>"
"""As the field of a cause: the object as a whole."""
_UNCHECKED = "some validation rules were not checked because the object was invalid"
"""A cause that names no fault: the API server adds it to those that do."""

_DENIED = ("denied the request", "denied request")
"""Words of admission webhooks and policies. They may answer with any status; what they deny may be
let through later, unlike an object that is wrong in itself."""

_FAILED_WEBHOOK = "failed calling webhook"


def from_answer(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """Return the error that an answer of the API server stands for.

    Args:
        status: the HTTP status, or the code of an ERROR event.
        body: the `Status` object of the answer, empty when there was none.
        retry_after: seconds after which the API server wants to be asked again.
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


def _causes(body: Mapping[str, Any]) -> tuple[Cause, ...]:
    listed = (body.get("details") or {}).get("causes") or ()
    fields = ((str(cause.get("field", "")), str(cause.get("message", ""))) for cause in listed)
    return tuple(
        Cause("" if field == _WHOLE else field, message)
        for field, message in fields
        if _UNCHECKED not in message
    )
