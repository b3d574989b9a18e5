"""Opens buckets with the credentials of the environment, and explains their errors."""

import contextlib
import datetime
import errno
import functools
import html
import os
import re
from collections.abc import Iterator
from typing import Any

import obstore
from obstore import exceptions, store

from tfparallel_trainer.storage import address

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""The variables that most installations set."""

Retries = dict[str, Any]
"""The retry configuration of obstore."""

RETRIES: Retries = {"max_retries": 10, "retry_timeout": datetime.timedelta(minutes=3)}
_SHOWN = 100
_FIRST_RETRIES: Retries = {"max_retries": 3, "retry_timeout": datetime.timedelta(seconds=20)}
_TIMEOUTS: "store.ClientConfig" = {"read_timeout": "30s", "timeout": "10m", "connect_timeout": "5s"}
_SERVERS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
_IDENTITY = re.compile(r"/latest/(api/token|meta-data)|computeMetadata|/oauth2/|Metadata server")
"""Marks a request for credentials that are not in the environment: a cloud's service gives them."""
_STATUS = re.compile(r"status code: (\d{3})")
_REASON = re.compile(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_MISSING = re.compile(r"NoSuchBucket|bucket does not exist", re.IGNORECASE)
_REGION = re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed|redirect without LOCATION")
_CREDENTIALS = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|Unauthorized"
)
_LISTED_NAME = "Encountered object with invalid path"
"""What obstore says of an object that another program has stored; it lists none of its page."""

_TRANSIENT = (404, 408, 409, 429)
"""Status codes below 500 after which a retry may succeed."""


class RefusedError(PermissionError):
    """A bucket cannot be used with this configuration: a retry would fail again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.EACCES, sentence)

    def __str__(self) -> str:
        return str(self.strerror)


class NameRefusedError(RefusedError):
    """No object can have a name: it has a control character, an empty part, or is no UTF-8."""


class ChangedError(OSError):
    """A conditional write came too late: the object has changed since it was read."""


@functools.cache
def connect(scheme: str, bucket: str) -> "store.ObjectStore":
    """Connect to a bucket; requests that fail for a moment are repeated for up to three minutes.

    A RefusedError says that the environment does not tell how.
    """
    return _store(scheme, bucket, RETRIES)


def check(location: address.Address) -> None:
    """Check that a bucket answers (OSError) and accepts the credentials (RefusedError)."""
    with explained(location):
        bucket = _store(location.scheme, location.bucket, _FIRST_RETRIES)
        obstore.list_with_delimiter(bucket, location.prefix or None)


def _store(scheme: str, bucket: str, retries: Retries) -> "store.ObjectStore":
    options: store.ClientConfig = {**_TIMEOUTS}
    if _server(scheme).startswith("http://"):
        options["allow_http"] = True
    kind: Any = store.S3Store if scheme == "s3" else store.GCSStore
    try:
        opened: store.ObjectStore = kind(bucket, client_options=options, retry_config=retries)
    except (exceptions.BaseError, ValueError, OSError) as error:
        raise RefusedError(
            f"the environment does not say how to open bucket {bucket!r} ({_text(error)}): see "
            f"{CREDENTIALS[scheme]}"
        ) from error
    return opened


def _server(scheme: str) -> str:
    """The address of a server that the environment names; empty: the cloud's own."""
    return next(filter(None, map(os.environ.get, _SERVERS[scheme])), "")


@contextlib.contextmanager
def explained(location: address.Address) -> Iterator[None]:
    """Convert errors of obstore about an object or a prefix into an OSError with a sentence.

    Raises:
        FileNotFoundError: the object is missing.
        ChangedError: a conditional write came too late.
        NameRefusedError: no object can have such a name.
        RefusedError: the bucket is missing or refuses the credentials.
        OSError: anything else.
    """
    try:
        yield
    except ValueError as error:  # of obstore for a path, of Python for what is no UTF-8
        raise NameRefusedError(
            f"no object can be named {location.prefix[-_SHOWN:]!r}: use a name without control "
            "characters, empty parts and dots alone"
        ) from error
    except (FileNotFoundError, exceptions.BaseError) as error:
        raise _explanation(error, location) from error


def _explanation(error: Exception, location: address.Address) -> OSError:
    if isinstance(error, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
        return ChangedError(errno.EEXIST, "Changed by another process", str(location))
    if isinstance(error, FileNotFoundError) and not _MISSING.search(str(error)):
        return FileNotFoundError(errno.ENOENT, "No such object", str(location))
    refusal = _refusal(str(error), _text(error), location)
    if refusal is not None:
        return RefusedError(refusal)
    return OSError(errno.EIO, _text(error), str(location))


def _refusal(error: str, text: str, location: address.Address) -> str | None:
    """Why a retry would fail again, and what to do; None: it may succeed."""
    scheme = location.scheme
    where = f"bucket {location.bucket!r} at {_server(scheme) or 'its cloud'}"
    match = _STATUS.search(error)
    status = 0 if match is None else int(match[1])
    if _MISSING.search(error):
        return (
            f"{where} does not exist: create it, or correct the address {location} or the server "
            f"({_SERVERS[scheme][0]})"
        )
    if _IDENTITY.search(error):
        return (
            f"the environment has no credentials for {where}: set {CREDENTIALS[scheme]} from a "
            "Secret, or give the pod's service account a role of the cloud"
        )
    if _LISTED_NAME in error:
        return (
            f"{where} has an object below {location} that cannot be listed ({text}): remove it, or "
            "give it a name without control characters and empty parts"
        )
    if status == 401 or _CREDENTIALS.search(error):
        return (
            f"{where} does not accept the credentials of the environment ({text}): correct "
            f"{CREDENTIALS[scheme]}"
        )
    if status == 403:
        return (
            f"the credentials of the environment lack a right on {where} ({text}): allow them to "
            f"list, read, write and delete below {location}"
        )
    if _REGION.search(error):
        return f"{where} is in another region ({text}): set AWS_REGION to it"
    if 400 <= status < 500 and status not in _TRANSIENT:
        return f"{where} refuses the request ({text}): see the address and the credentials"
    return None


def _text(error: Exception) -> str:
    """The server's message about an error, or the first line of obstore's message."""
    reason = _REASON.search(str(error))
    if reason is not None:
        return ": ".join(html.unescape(part) for part in reason.groups() if part)
    return " ".join(str(error).partition("\n\n")[0].split())[:400]
