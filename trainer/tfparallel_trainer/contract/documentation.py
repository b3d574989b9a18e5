"""The parts of the documentation that messages name, and how a message names one.

Wheels and images hold no pages, and the project has no address: a heading can be found in any copy.
"""

import dataclasses
import enum


@dataclasses.dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a page in docs/."""

    file: str
    text: str


class Section(enum.Enum):
    """Every section that a message names."""

    EVERY_TFJOB = Heading("how-to/tfjob.md", "Differences for every TFJob")
    EVERY_TRAINJOB = Heading("how-to/trainjob.md", "Differences for every TrainJob")
    GANG_SCHEDULER = Heading("how-to/scheduling.md", "When the scheduler is not installed")
    KERAS_FIT = Heading("how-to/old-scripts.md", "Keras' fit")
    MODEL_FILE = Heading("how-to/model-interface.md", "The model file: what you write")
    OWN_STEPS = Heading("how-to/model-interface.md", "Training steps of your own")
    QUEUES = Heading("how-to/scheduling.md", "Queues: Kueue")


def reference(section: Section) -> str:
    """Return the words by which a message names a section: the one place to put an address."""
    return f'"{section.value.text}" in the documentation'
