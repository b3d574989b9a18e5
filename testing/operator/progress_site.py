"""A client of the progress endpoint, with the tokens that the kubelet would bring to pods."""

import dataclasses
from typing import Any

import aiohttp

from testing import waiting
from testing.operator import namespaces
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.pods import progress_report

HOST = "127.0.0.1"
REPORT = {"step": 40, "totalSteps": 100, "percent": 40, "metrics": {"loss": "0.25"}, "eta": "12s"}


@dataclasses.dataclass
class Site:
    """A running operator with its endpoint, and a job whose pods exist."""

    namespace: Namespace
    port: int
    http: aiohttp.ClientSession

    async def token(self, pod: str, audience: str) -> str:
        """Ask for a token that is bound to a pod, as the kubelet does."""
        pod_manifest = (await self.namespace.pods())[pod]
        reference = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": pod,
            "uid": pod_manifest["metadata"]["uid"],
        }
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "boundObjectRef": reference},
        }
        account = namespaces.SERVICE_ACCOUNTS.path(self.namespace.name, "default")
        answer = await self.namespace.api.create(
            resources.Resource("v1", f"{account.removeprefix('/api/v1/')}/token"), None, request
        )
        return str(answer["status"]["token"])

    async def audience(self, job: str = "digits") -> str:
        return progress_report.audience((await self.namespace.job(job))["metadata"]["uid"])

    async def send(
        self, token: str | None, report: Any = None, job: str = "digits"
    ) -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        path = progress_report.path(self.namespace.name, job)
        url = f"https://{HOST}:{self.port}{path}"
        body = REPORT if report is None else report
        async with self.http.post(url, json=body, headers=headers) as answer:
            content = await answer.json()
            return answer.status, content.get("error", "")

    async def send_in_turn(
        self, token: str | None, report: Any = None, job: str = "digits"
    ) -> tuple[int, str]:
        """Send a report again until it no longer comes too early."""
        return await waiting.until_async(
            lambda: self.send(token, report, job),
            "the job's turn has come",
            when=lambda answer: answer[0] != 429,
        )
