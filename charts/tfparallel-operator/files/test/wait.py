"""Waits for the job of `helm test` and prints how it ended.

Usage: python wait.py NAMESPACE JOB SECONDS
"""

import json
import pathlib
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc/apis/tfparallel.dev/v1alpha1"
POLL_SECONDS = 2.0


def main(namespace: str, name: str, seconds: str) -> int:
    """Return 0 if the job succeeds in time."""
    deadline = time.monotonic() + float(seconds)
    state, status = "", {}
    while time.monotonic() < deadline:
        try:
            status = read(f"{API}/namespaces/{namespace}/tfparalleljobs/{name}")
        except urllib.error.HTTPError as error:
            return fail(f"the API server answers {error.code} to {error.url}: {error.reason}")
        except OSError as error:
            print(f"no answer from the API server: {error}", flush=True)
        if status.get("state", state) != state:
            state = status["state"]
            print(f"{namespace}/{name} is {state}", flush=True)
        if state == "Succeeded":
            return succeed(status.get("progress"))
        if state == "Failed":
            break
        time.sleep(POLL_SECONDS)
    if not status:
        return fail(f"no operator has looked at the job: does it run, and watch {namespace}?")
    return fail(f"the job is {state}", *(line(each) for each in status.get("conditions", ())))


def read(url: str) -> dict:
    """Return the status of a job."""
    token = (ACCOUNT / "token").read_text(encoding="utf-8")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
        return json.load(answer).get("status", {})


def succeed(progress: dict | None) -> int:
    """Say whether progress was reported: a job trains without it."""
    if progress:
        print(f"progress: step {progress.get('step')} of {progress.get('totalSteps')}")
    else:
        print("no progress was reported: see that pods reach the operator's Service")
    return 0


def fail(*lines: str) -> int:
    """Print why the test fails."""
    print(*lines, sep="\n", file=sys.stderr)
    return 1


def line(condition: dict) -> str:
    """Return a condition as text."""
    return "{type}={status} {reason}: {message}".format_map(condition)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
