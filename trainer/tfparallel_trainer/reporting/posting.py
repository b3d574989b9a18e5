"""POSTs JSON to the endpoint that the operator, or a local run, serves for a job."""

import contextlib
import ssl
import urllib.request

from tfparallel_trainer import process_settings

_LARGEST_ANSWER = 65_536


def post(target: process_settings.ProgressTarget, body: bytes, seconds: float) -> bytes:
    """Send a body, and return that of the answer. The token is read each time: it is renewed.

    Raises:
        urllib.error.HTTPError: the endpoint refuses it.
        OSError, http.client.HTTPException: it was not sent, or not answered in time.
        ValueError: the address is neither http nor https.
    """
    headers = {"Content-Type": "application/json"}
    if target.token_file is not None:
        token = target.token_file.read_text(encoding="utf-8").strip()
        headers["Authorization"] = f"Bearer {token}"
    if not target.url.startswith(("http:", "https:")):
        raise ValueError(f"the address {target.url} is neither http nor https")
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({})  # The token is for the operator, not for a proxy.
    ]
    if target.url.startswith("https:"):
        authorities = None if target.ca_file is None else str(target.ca_file)
        context = ssl.create_default_context(cafile=authorities)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(target.url, body, headers, method="POST")  # noqa: S310
    with contextlib.closing(opener.open(request, timeout=seconds)) as response:
        answer: bytes = response.read(_LARGEST_ANSWER)
    return answer
