"""The address of the documentation, and the sections that messages name.

Wheels and images hold no pages, so a message has the address of one.
"""

import dataclasses
import enum
import re

ADDRESS = "https://tfparallel.dev"
"""Where the site is published: `site_url` of mkdocs.yml and `home` of the chart have it too."""

REASONS = f"{ADDRESS}/reference/reasons.html"
"""The page on conditions, reasons and exit codes: each has its name in lower case as an anchor."""


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
    """Return the address of a section."""
    heading = section.value
    anchor = re.sub(r"[^\w\- ]", "", heading.text.lower()).replace(" ", "-")
    return f"{ADDRESS}/{heading.file.removesuffix('.md')}.html#{anchor}"
