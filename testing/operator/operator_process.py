"""The operator as a process of its own, as it runs in a cluster."""

import asyncio
import contextlib
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence

from testing import branches, waiting
from tfparallel.backends.local import ports

START_SECONDS = 180.0
COMMAND = ("-m", "tfparallel_operator.main")


class OperatorProcess:
    """A running operator and what it has written to its log."""

    def __init__(self, process: asyncio.subprocess.Process, log: pathlib.Path, port: int) -> None:
        self.process = process
        self._log = log
        self._port = port

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def probe(self, path: str) -> tuple[int, str]:
        """Ask a probe; status 0 while nothing listens."""
        return await probe(self._port, path)

    async def until_ready(self) -> None:
        async def ready() -> bool:
            assert self.process.returncode is None, self.log
            return (await self.probe("/readyz"))[0] == 200

        await waiting.until_async(ready, "the operator is ready", START_SECONDS)


async def probe(port: int, path: str) -> tuple[int, str]:
    """Ask a server on this machine; status 0 while nothing listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return 0, ""
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@contextlib.asynccontextmanager
async def running(
    arguments: Mapping[str, str], log: pathlib.Path, command: Sequence[str] = COMMAND
) -> AsyncIterator[OperatorProcess]:
    """Start a Python command with environment variables, as a Deployment does."""
    [port] = ports.allocate(1)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(log.parent),
        "TFPARALLEL_TRAINER_IMAGE": "trainer:test",
        "TFPARALLEL_HEALTH_PORT": str(port),
        **branches.inherited(),
        **arguments,
    }
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env=variables,
            stdout=stream,
            stderr=stream,
        )
    try:
        yield OperatorProcess(process, log, port)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def write_kubeconfig(address: str, folder: pathlib.Path) -> pathlib.Path:
    """Write a kubeconfig for the API server at an address."""
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: only\n"
        f"clusters: [{{name: only, cluster: {{server: '{address}'}}}}]\n"
        "users: [{name: only, user: {token: secret}}]\n"
        "contexts: [{name: only, context: {cluster: only, user: only}}]\n"
    )
    return path
