"""Chooses the cluster and the namespace by the rules of kubectl."""

import contextlib
import dataclasses
import difflib
import importlib
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tfparallel import errors
from tfparallel_operator.api import load
from tfparallel_operator.api_server import credentials


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """A cluster, a user and a namespace."""

    name: str
    """Name of the context in the kubeconfig; empty in a pod."""
    namespace: str
    access: credentials.Access


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The user's options; None: the option is absent, and kubectl's default applies."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; several are separated as in $KUBECONFIG."""
    context: str | None = None
    namespace: str | None = None


def find(choice: ConnectionOptions) -> Context:
    """Return the context that kubectl would use.

    Without a kubeconfig, in a pod, it is the pod's service account and namespace.

    Raises:
        SpecError: the kubeconfig has no such context.
        Failure: no cluster can be reached with what is there.
    """
    files = _files(choice)
    exists = any(path.exists() for path in _paths(files))
    try:
        if not exists and choice.kubeconfig is None and choice.context is None:
            return _of_pod(files, choice)
        if not exists:
            raise errors.Failure(
                f"kubeconfig {files!r} does not exist. Correct --kubeconfig or KUBECONFIG"
            )
        name, namespace = _find_context(files, choice.context)
        with _login_explained(name):
            cluster_access = credentials.from_kubeconfig(files, name)
        return Context(name=name, namespace=choice.namespace or namespace, access=cluster_access)
    except credentials.CredentialsError as error:
        raise errors.Failure(str(error)) from error


def list_contexts(choice: ConnectionOptions) -> list[str]:
    """Return the names of the contexts that can be chosen.

    Raises:
        Failure: the kubeconfig cannot be read.
    """
    by_name, _ = _read_contexts(_files(choice))
    return [*by_name]


def _files(choice: ConnectionOptions) -> str:
    default = pathlib.Path.home() / ".kube" / "config"
    return choice.kubeconfig or os.environ.get("KUBECONFIG") or str(default)


@contextlib.contextmanager
def _login_explained(context: str) -> Iterator[None]:
    """Raise an error if a login plugin fails, which the package kubernetes only logs.

    Raises:
        Failure: with the words of the plugin.
    """
    errors_logged = _Messages(logging.ERROR)
    logging.getLogger().addHandler(errors_logged)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(errors_logged)
    if errors_logged.texts:
        cause = " ".join(errors_logged.texts[0].split()).rstrip(".")
        raise errors.Failure(
            f"the login command of context {context!r} in the kubeconfig fails: {cause}. Log in"
            " again, as you do for kubectl"
        )


class _Messages(logging.Handler):
    """Collects log messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _paths(files: str) -> list[pathlib.Path]:
    return [pathlib.Path(file) for file in files.split(os.pathsep) if file]


def _of_pod(files: str, choice: ConnectionOptions) -> Context:
    if not credentials.SERVICE_ACCOUNT.exists():
        raise errors.Failure(
            f"no kubeconfig: {files} does not exist. Set KUBECONFIG or --kubeconfig to your"
            " cluster's file; `tfparallel run` needs no cluster"
        )
    namespace = choice.namespace or credentials.own_namespace()
    return Context(name="", namespace=namespace, access=credentials.find(None))


def _find_context(files: str, requested: str | None) -> tuple[str, str]:
    """Return the name and the namespace of a context, or of the current one."""
    by_name, current = _read_contexts(files)
    name = requested or current
    chosen = by_name.get(name)
    if chosen is None:
        near = difflib.get_close_matches(name, by_name, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(by_name) or 'none'}."
        field = "--context" if requested else "current-context"
        raise load.SpecError(f"{field} {name!r} is not in {files}: {hint}")
    return chosen["name"], chosen["context"].get("namespace") or "default"


def _read_contexts(files: str) -> tuple[dict[str, Any], str]:
    """Return the contexts by name, and the name of the current one."""
    config = importlib.import_module("kubernetes.config")
    current = _current_context(files)
    try:
        contexts, last = config.list_kube_config_contexts(config_file=files)
    except (config.ConfigException, OSError, ValueError) as error:
        raise errors.Failure(
            f"kubeconfig {files!r} cannot be used: {error}. Choose a context with `kubectl config"
            " use-context NAME` or --context NAME"
        ) from error
    return {context["name"]: context for context in contexts}, current or last["name"]


def _current_context(files: str) -> str | None:
    """Return the current context of the first file that has one, as kubectl does.

    The package kubernetes takes that of the last.

    Raises:
        Failure: a file is no kubeconfig.
    """
    contents = [_read(path) for path in _paths(files) if path.exists()]
    named = (content.get("current-context") for content in contents)
    return next((str(name) for name in named if name), None)


def _read(path: pathlib.Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, OSError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise errors.Failure(
            f"kubeconfig {str(path)!r} cannot be read as YAML: {cause}. Correct the file, or choose"
            " another with --kubeconfig"
        ) from error
    if not isinstance(content, dict):
        raise errors.Failure(
            f"kubeconfig {str(path)!r} cannot be used: it has no contexts. Choose another with"
            " --kubeconfig"
        )
    return content
