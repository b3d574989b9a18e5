"""Turns errors of the API server into sentences with a remedy."""

import contextlib
import importlib.metadata
import re
from collections.abc import Iterator

from tfparallel import errors
from tfparallel.backends.cluster import access
from tfparallel_operator.api import load, names, problems
from tfparallel_operator.api_server import credentials
from tfparallel_operator.api_server import errors as api_errors

INSTALL = (
    "helm install tfparallel-operator charts/tfparallel-operator --namespace tfparallel-system"
    " --create-namespace"
)

_MISSING_RIGHT = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
)
_ANONYMOUS = 'User "system:anonymous"'
"""The user of a request without credentials, for example after a login plugin failed."""

_OTHER_NAME = ("Hostname mismatch", "IP address mismatch")
"""OpenSSL's message about a certificate that does not name the server."""

_MISSING_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')
_UNKNOWN_FIELD = re.compile(r'unknown field "(?P<field>[^"]+)"')
_NO_VALUE = re.compile(r'^Invalid value: ("(object|null)": |(?!\S+: ))')
"""The prefix of a rule's message. Kubernetes does not show the value of an object."""

_PART = re.compile(r"[^.\[\]]+")
"""The name of a field, or the number of an item."""


@contextlib.contextmanager
def explained(context: access.Context) -> Iterator[None]:
    """Convert errors of the API server into errors of this package.

    Raises:
        SpecError: it refuses an object as wrong.
        Failure: it refuses or does not answer, for any other reason.
    """
    try:
        yield
    except api_errors.Invalid as error:
        raise load.SpecError("; ".join(map(str, problems_of(error)))) from error
    except api_errors.ApiError as error:
        raise errors.Failure(sentence(error, context)) from error


def sentence(error: api_errors.ApiError, context: access.Context) -> str:
    """Return the meaning of an error, and what to do."""
    where = f"context {context.name!r}" if context.name else "this cluster"
    match error.status, error:
        case 0, _:
            return f"{error}. {_remedy(str(error), context.access, where)}"
        case (401, _) | (403, _) if error.status == 401 or _ANONYMOUS in str(error):
            return (
                f"the API server does not accept your credentials for {where} ({error.status}):"
                " they have expired or are wrong. Log in again, as you do for kubectl"
            )
        case 403, _ if missing := _MISSING_RIGHT.search(str(error)):
            return (
                f"{missing['user']} may not {missing['verb']} {missing['resource']} in namespace"
                f" {context.namespace!r} of {where}. Ask for a Role with that verb and resource, or"
                " choose another namespace with -n"
            )
        case 404, _ if missing := _MISSING_NAMESPACE.search(str(error)):
            name = missing["name"]
            return (
                f"namespace {name!r} does not exist in {where}. Create it with `kubectl create"
                f" namespace {name}`, or choose another with -n"
            )
        case 404, _ if not error.reason:
            return (
                f"{names.KIND} is not installed in {where}: the API server does not know"
                f" {names.PLURAL}.{names.GROUP} {names.VERSION}. Install the operator: {INSTALL}"
            )
        case 409, api_errors.AlreadyExists():
            return f"{error}. Delete it first, or choose another name with --name"
        case 429 | 500 | 502 | 503 | 504, _:
            return f"the API server of {where} is busy: {error}. Try again in a moment"
        case _:
            return f"the API server of {where} refused: {error}"


def _remedy(message: str, server: credentials.Access, where: str) -> str:
    """Return what to do if the API server did not answer."""
    field = "of its cluster in the kubeconfig"
    if any(part in message for part in _OTHER_NAME):
        return f"Set tls-server-name {field} of {where} to a name in the server's certificate"
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return (
            f"The certificate of {where} is not trusted: correct certificate-authority-data {field}"
        )
    if server.proxy is not None:
        return f"The way to {where} leads through the proxy {server.proxy}: see that it is right"
    return f"See that the cluster of {where} runs: kubectl cluster-info"


def lacks_right(error: api_errors.ApiError) -> bool:
    """Whether you lack the right to send the request.

    Policies and quotas refuse the object instead.
    """
    return _MISSING_RIGHT.search(str(error)) is not None


def problems_of(error: api_errors.ApiError) -> list[problems.Problem]:
    """Return the fields that the API server refuses, and why."""
    unknown = [
        problems.Problem(_place(field), _unknown_sentence(field))
        for field in _UNKNOWN_FIELD.findall(str(error))
    ]
    causes = [
        problems.Problem(_place(cause.field), _NO_VALUE.sub("", cause.message))
        for cause in error.causes
    ]
    return unknown or causes or [problems.Problem((), str(error))]


def _place(path: str) -> problems.Place:
    parts = _PART.findall(path)
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def _unknown_sentence(field: str) -> str:
    return (
        f"the cluster's {names.KIND} has no field {field!r}: correct the name, or upgrade the"
        " operator and its resource definition to"
        f" {importlib.metadata.version('tfparallel')}. `tfparallel doctor` compares them"
    )
