"""Which cluster and which namespace: the rules of kubectl."""

import dataclasses
import difflib
import importlib
import os
import pathlib
from typing import Any

import yaml

from tfparallel import errors
from tfparallel_operator.api import load
from tfparallel_operator.api_server import credentials


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """A cluster, a user and a namespace."""

    name: str
    """Of the context in the kubeconfig; empty in a pod."""
    namespace: str
    access: credentials.Access


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What the user chose by options; None: as kubectl does without them."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; several are separated as in $KUBECONFIG."""
    context: str | None = None
    namespace: str | None = None


def find(choice: Choice) -> Context:
    """Return the context that kubectl would use.

    Without a kubeconfig, in a pod, it is the pod's service account and namespace.

    Raises:
        SpecError: the kubeconfig has no such context.
        Failure: no cluster can be reached with what is there.
    """
    files = _files(choice)
    exists = any(pathlib.Path(file).exists() for file in files.split(os.pathsep) if file)
    try:
        if not exists and choice.kubeconfig is None and choice.context is None:
            return _of_pod(files, choice)
        name, namespace = _find_context(files, choice.context)
        return Context(
            name=name,
            namespace=choice.namespace or namespace,
            access=credentials.from_kubeconfig(files, name),
        )
    except credentials.CredentialsError as error:
        raise errors.Failure(str(error)) from error


def list_contexts(choice: Choice) -> list[str]:
    """Return the names of the contexts that can be chosen.

    Raises:
        Failure: the kubeconfig cannot be read.
    """
    by_name, _ = _read_contexts(_files(choice))
    return [*by_name]


def _files(choice: Choice) -> str:
    default = pathlib.Path.home() / ".kube" / "config"
    return choice.kubeconfig or os.environ.get("KUBECONFIG") or str(default)


def _of_pod(files: str, choice: Choice) -> Context:
    if not credentials.SERVICE_ACCOUNT.exists():
        raise errors.Failure(
            f"no kubeconfig: {files} does not exist. Set KUBECONFIG or --kubeconfig to your"
            " cluster's file; `tfparallel run` needs no cluster"
        )
    namespace = choice.namespace or credentials.own_namespace()
    return Context(name="", namespace=namespace, access=credentials.find(None))


def _find_context(files: str, wished: str | None) -> tuple[str, str]:
    """Return the name and the namespace of a context, or of the current one."""
    by_name, last = _read_contexts(files)
    chosen = by_name.get(wished or _current_context(files) or last)
    if chosen is None:
        near = difflib.get_close_matches(str(wished), by_name, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(by_name) or 'none'}."
        raise load.SpecError(f"--context {wished!r} is not in {files}: {hint}")
    return chosen["name"], chosen["context"].get("namespace") or "default"


def _read_contexts(files: str) -> tuple[dict[str, Any], str]:
    """Return the contexts by name, and the name of the current one of the last file."""
    config = importlib.import_module("kubernetes.config")
    try:
        contexts, last = config.list_kube_config_contexts(config_file=files)
    except (config.ConfigException, OSError, ValueError) as error:
        raise errors.Failure(
            f"kubeconfig {files!r} cannot be used: {error}. Choose a context with `kubectl config"
            " use-context NAME` or --context NAME"
        ) from error
    return {context["name"]: context for context in contexts}, last["name"]


def _current_context(files: str) -> str | None:
    """Return the current context of the first file that has one, as kubectl does.

    The package kubernetes takes that of the last.
    """
    for file in filter(None, files.split(os.pathsep)):
        path = pathlib.Path(file)
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
        if isinstance(content, dict) and content.get("current-context"):
            return str(content["current-context"])
    return None
