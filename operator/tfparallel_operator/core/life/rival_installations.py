"""Two installations of the operator that watch one job: one acts, the other leaves it alone. Pure.

The ConfigMap of a job names the installation that acts. If another installation finds the job, it
asks by an annotation whether the first one still runs. The acting installation answers as soon as
it sees the question. If no answer comes, it is gone, and the other installation takes over the job.
So a new installation under another name needs nobody's help. The acting installation says in the
status that another one has asked. Nobody else writes the status, so that the two do not undo each
other's writes.
"""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, installation, observation, remedies
from tfparallel_operator.core.life import deadlines
from tfparallel_operator.core.status import conditions

ANSWER_TIME = datetime.timedelta(seconds=60)
"""How long to wait for an answer. An operator that restarts or upgrades is back by then."""

ASK_AGAIN = datetime.timedelta(minutes=10)
"""How long an answer is valid."""

CONTESTED_FOR = 2 * ASK_AGAIN + ANSWER_TIME
"""How long a question proves that the other installation runs. It asks again before that."""

_ASKED, _ANSWERED = "asked", "answered"


def is_other(
    config_map: observation.Config | None, settings: installation.InstallationSettings
) -> bool:
    """Whether another installation acts on a job."""
    if config_map is None or not settings.installation:
        return False
    return config_map.installation not in ("", settings.installation)


def may_act(
    config_map: observation.Config | None,
    settings: installation.InstallationSettings,
    now: datetime.datetime,
) -> bool:
    """Whether this installation acts on a job, because no other one does or answers."""
    if config_map is None or not is_other(config_map, settings):
        return True
    state, asked_at = _read_question(config_map, settings.installation, now)
    return state == _ASKED and now - asked_at >= ANSWER_TIME


def stand_back(
    status: job_status.JobStatus,
    config_map: observation.Config,
    settings: installation.InstallationSettings,
    now: datetime.datetime,
) -> decision.Decision:
    """Leave a job to another installation, and ask from time to time whether it still runs."""
    state, asked_at = _read_question(config_map, settings.installation, now)
    if state == _ASKED:
        return decision.Decision(status, wake_at=asked_at + ANSWER_TIME)
    if state == _ANSWERED and now - asked_at < ASK_AGAIN:
        message = (
            f"installation {config_map.installation} of the operator acts on this job, and"
            f" {settings.installation} leaves it alone"
        )
        explanation = remedies.explain(message)
        notice = decision.warning(names.Reason.OTHER_INSTALLATION, explanation.message)
        return decision.Decision(status, notices=(notice,), wake_at=asked_at + ASK_AGAIN)
    question = _write_question(settings.installation, _ASKED, now)
    asked = _annotate(config_map, question)
    return decision.Decision(status, changes=(asked,), wake_at=now + ANSWER_TIME)


def respond(
    decided: decision.Decision,
    config_map: observation.Config | None,
    settings: installation.InstallationSettings,
    stamp: conditions.Stamp,
) -> decision.Decision:
    """Answer another installation that asks whether this one still acts, and say so on the job."""
    asker, state, time = _parse("" if config_map is None else config_map.question)
    if not settings.installation or asker == settings.installation:
        asker, state = "", ""
    decided = _contest(decided, asker, observation.parse_time(time), stamp)
    if config_map is None or state != _ASKED:
        return decided
    answer = _annotate(config_map, f"{asker} {_ANSWERED} {time}")
    return dataclasses.replace(decided, changes=(answer, *decided.changes))


def _contest(
    decided: decision.Decision,
    asker: str,
    asked_at: datetime.datetime | None,
    stamp: conditions.Stamp,
) -> decision.Decision:
    """Say in a condition whether another installation has asked recently."""
    kind, status = names.ConditionType.CONTESTED, decided.status
    age = CONTESTED_FOR if asked_at is None or not asker else stamp.now - asked_at
    if not -ANSWER_TIME <= age < CONTESTED_FOR:  # It is gone, or people have written a question.
        is_said = conditions.find(status, kind) is not None
        status = conditions.remove(status, kind) if is_said else status
        return dataclasses.replace(decided, status=status)
    message = f"installation {asker} of the operator watches this job, too, and leaves it alone"
    explanation = remedies.explain(message)
    status = stamp.set(status, kind, True, names.Reason.OTHER_INSTALLATION, explanation)
    wake_at = deadlines.earliest(decided.wake_at, stamp.now + CONTESTED_FOR - age)
    return dataclasses.replace(decided, status=status, wake_at=wake_at)


def _annotate(config_map: observation.Config, question: str) -> decision.Change:
    fields = {"metadata": {"annotations": {names.ANNOTATION_QUESTION: question}}}
    return decision.Change(decision.CONFIG_MAP, config_map.name, config_map.uid, fields)


def _write_question(asker: str, state: str, now: datetime.datetime) -> str:
    return f"{asker} {state} {now.isoformat()}"


def _read_question(
    config_map: observation.Config, asker: str, now: datetime.datetime
) -> tuple[str, datetime.datetime]:
    """Return whether an installation has asked or has an answer, and when it asked.

    Both times come from the clock of that installation. If the annotation is unreadable or belongs
    to another installation, it counts as absent.
    """
    who, state, time = _parse(config_map.question)
    never = "", datetime.datetime.min.replace(tzinfo=datetime.UTC)
    asked_at = observation.parse_time(time) if who == asker else None
    # People may write here, too, and a time to come would never be over.
    return never if asked_at is None or asked_at > now else (state, asked_at)


def _parse(question: str) -> tuple[str, str, str]:
    parts = question.split(" ")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", "")
