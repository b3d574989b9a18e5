"""How random jobs ended, and the file that keeps the outcomes."""

import collections
import dataclasses
import enum
import json
import pathlib
import re
from collections.abc import Iterable, Sequence

from testing.trainer.random_models import drawing


class Ending(enum.StrEnum):
    """How a random job ended."""

    EQUAL = "equal"
    REFUSED = "refused at the start"
    REFUSED_LATER = "refused after a callback"
    ROUNDING = "rounding, which the model amplifies"
    INVALID = "fails in Keras too"
    DIFFERENT = "other weights"
    UNCLEAR = "refused without a sentence of ours"
    PROVEN = "ended by the check of the weights"
    HUNG = "hung"
    CRASHED = "crashed"

    @property
    def is_failure(self) -> bool:
        """Whether the trainer is at fault."""
        return self in _FAILURES


_FAILURES = (
    Ending.DIFFERENT,
    Ending.UNCLEAR,
    Ending.PROVEN,
    Ending.HUNG,
    Ending.CRASHED,
)


@dataclasses.dataclass(frozen=True, slots=True)
class JobVerdict:
    """How a job ended, with what shows it."""

    ending: Ending
    detail: str = ""
    """The sentence of a refusal or of a crash."""
    difference: float = 0.0
    """The largest of a weight."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a job of a campaign ended."""

    model: int
    place: int
    """Which job of the model."""
    layout: str
    ending: Ending
    detail: str
    difference: float

    @property
    def name(self) -> str:
        """What `--job` takes."""
        return f"{self.model}.{self.layout}"

    def __str__(self) -> str:
        return f"{self.name} {self.layout}: {self.ending} {self.difference:.0e} {self.detail}"


@dataclasses.dataclass
class CampaignFile:
    """A campaign's file: a line with the seed, then one for each outcome."""

    path: pathlib.Path
    seed: int
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)

    @classmethod
    def open(cls, path: pathlib.Path, seed: int) -> "CampaignFile":
        """Read the file, or begin it; a model that a kill cut off is dropped."""
        state = cls(path, seed)
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            first, *records = (json.loads(line) for line in lines if line.endswith("\n"))
            state.seed = first["seed"]
            read = [Outcome(**{**record, "ending": Ending(record["ending"])}) for record in records]
            jobs = collections.Counter(outcome.model for outcome in read)
            state.outcomes = [
                outcome for outcome in read if jobs[outcome.model] == drawing.LAYOUTS_PER_MODEL
            ]
        state._write()
        return state

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Append the outcomes of a model, or let them take the place of those that it has."""
        number = outcomes[0].model
        if any(outcome.model == number for outcome in self.outcomes):
            self.outcomes = [outcome for outcome in self.outcomes if outcome.model != number]
            self._write()
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, outcomes)))
        self.outcomes += outcomes

    def _write(self) -> None:
        draft = self.path.with_suffix(".draft")
        lines = [json.dumps({"seed": self.seed}) + "\n", *map(_line, self.outcomes)]
        draft.write_text("".join(lines), encoding="utf-8")
        draft.replace(self.path)

    def remaining(self, jobs: int) -> list[int]:
        """Return the numbers of the models that are missing for so many jobs."""
        present = {outcome.model for outcome in self.outcomes}
        models = -(-jobs // drawing.LAYOUTS_PER_MODEL)
        return [number for number in range(models) if number not in present]

    def failed(self) -> list[int]:
        """Return the numbers of the models with a failure."""
        return sorted({outcome.model for outcome in self.outcomes if outcome.ending.is_failure})


def _line(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome)) + "\n"


def counts(outcomes: Iterable[Outcome]) -> dict[Ending, int]:
    """Return how many jobs ended in each way."""
    counter = collections.Counter(outcome.ending for outcome in outcomes)
    return {ending: counter[ending] for ending in Ending}


def group(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Group outcomes by their sentence, without names and numbers of one model."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(generalise(outcome.detail), []).append(outcome)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def generalise(sentence: str) -> str:
    """Return a sentence without the names and numbers of one model."""
    text = re.sub(r"\b(?:[a-z0-9]+_)+\d+\b(?:/\w+)*", "NAME", sentence)
    text = re.sub(r"\b(input|output)_\d+\b", "NAME", text)
    return re.sub(r"-?\d[\d.e+-]*", "N", text)
