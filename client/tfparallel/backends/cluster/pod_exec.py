"""Runs a command in a container of a pod, and streams its output.

A WebSocket of aiohttp carries bytes as they are, and waits for slow readers. Logs would do neither:
kubelets rotate them, and log collectors would keep a copy of the model.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from tfparallel import errors
from tfparallel.backends.cluster import cluster_backend
from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OUTPUT, _ERROR, _STATUS = 1, 2, 3
"""The kind of a message: its first byte."""

_SILENCE_SECONDS = 120.0
_SHOWN = 300
"""Characters of standard error that a failure shows."""


class CommandFailure(errors.Failure):
    """A command has failed in a pod."""

    def __init__(self, sentence: str, exit_code: int | None) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


async def run(
    cluster: cluster_backend.ClusterBackend, pod: str, command: Sequence[str]
) -> AsyncIterator[bytes]:
    """Yield the standard output of a command.

    Raises:
        Failure: you lack the right.
        CommandFailure: the command fails.
        Unavailable: the connection broke.
    """
    access = cluster.context.access
    url = access.server + resources.PODS.path(cluster.namespace, pod, "exec")
    query = [("container", names.CONTAINER), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    timeout = aiohttp.ClientWSTimeout(ws_receive=_SILENCE_SECONDS)
    complaints = b""
    try:
        async with (
            access.session() as session,
            session.ws_connect(
                url, params=query, protocols=_PROTOCOLS, max_msg_size=0, timeout=timeout
            ) as stream,
        ):
            async for message in stream:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, content = message.data[0], message.data[1:]
                if channel == _OUTPUT and content:
                    yield content
                elif channel == _ERROR:
                    complaints += content
                elif channel == _STATUS:
                    _check(json.loads(content), complaints)
                    return
    except aiohttp.WSServerHandshakeError as error:
        raise _refusal(error, cluster.namespace, pod) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise api_errors.Unavailable(str(error) or type(error).__name__) from error
    raise api_errors.Unavailable(f"the connection to pod {pod} ended early")


def _check(status: dict[str, Any], complaints: bytes) -> None:
    if status.get("status") != "Success":
        text = " ".join(complaints.decode(errors="replace").split())[-_SHOWN:]
        causes = status.get("details", {}).get("causes", [])
        codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
        raise CommandFailure(
            f"reading in the pod failed: {text or status.get('message')}. Run the command again",
            int(codes[0]) if codes and codes[0].isdecimal() else None,
        )


def _refusal(error: aiohttp.WSServerHandshakeError, namespace: str, pod: str) -> Exception:
    if error.status in (401, 403):
        return errors.Failure(
            f"you may not run commands in pods of namespace {namespace!r} ({error.status}). Ask for"
            " a Role with the verbs get and create on pods/exec"
        )
    return api_errors.Unavailable(f"no connection to pod {pod}: HTTP status {error.status}")
