"""Asks what to do after a run, until there is an answer."""

import http.client
import time
import urllib.error
from collections.abc import Callable

from tfparallel_trainer import process_settings
from tfparallel_trainer.agent import child
from tfparallel_trainer.contract import agents
from tfparallel_trainer.reporting import posting

PATIENCE_SECONDS = 20.0
"""How long nobody may answer, from the first question in vain on. Then the container ends with the
trainer's code, and whoever runs the job sees that, as it does without an agent. Until then, a
cluster whose pods do not reach the operator does not see it."""

_REQUEST_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
_BUSY = frozenset({408, 429})


def await_run(
    target: process_settings.ProgressTarget,
    end: agents.RunEnd,
    requests: child.Requests,
    say: Callable[[str], None],
) -> agents.Run | None:
    """Return the next run; None: the container ends."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    problem = ""
    while not requests.to_end:
        question = end.model_copy(update={"interrupted": requests.to_interrupt})
        seconds = _AGAIN_SECONDS
        try:
            answer = _ask(target, question)
        except urllib.error.HTTPError as error:
            if 400 <= error.code < 500 and error.code not in _BUSY:
                say(f"no other run begins in this container: the answer is {error}")
                return None
            problem = str(error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = str(error)
        else:
            if answer.instruction is not agents.Instruction.WAIT:
                return answer.run
            seconds = answer.seconds
            ends_at = time.monotonic() + seconds + PATIENCE_SECONDS
        if time.monotonic() > ends_at:
            say(f"nobody has answered for {PATIENCE_SECONDS:.0f} s ({problem}): the container ends")
            return None
        child.wait(requests, seconds)
    return None


def _ask(target: process_settings.ProgressTarget, end: agents.RunEnd) -> agents.AgentResponse:
    body = end.model_dump_json(by_alias=True).encode()
    return agents.AgentResponse.model_validate_json(posting.post(target, body, _REQUEST_SECONDS))
