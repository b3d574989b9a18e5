"""The address of the documentation, and the sections that messages name.

Wheels and images hold no pages, so a message has the address of one.
"""

import enum
import re

ADDRESS = "https://tfparallel.dev"
"""Where the site is published: `site_url` of mkdocs.yml and `home` of the chart have it too."""

REASONS = f"{ADDRESS}/reference/reasons.html"
"""The page on conditions, reasons and exit codes: each has its name in lower case as an anchor."""


class Section(enum.Enum):
    """Every section that a message names: its page in docs/, and its heading."""

    EVERY_TFJOB = "how-to/tfjob.md", "Differences for every TFJob"
    EVERY_TRAINJOB = "how-to/trainjob.md", "Differences for every TrainJob"
    GANG_SCHEDULER = "how-to/scheduling.md", "When the scheduler is not installed"
    KERAS_FIT = "how-to/old-scripts.md", "Keras' fit"
    LOCAL_NETWORK = "how-to/local.md", "Who can reach a run"
    MODEL_FILE = "how-to/model-interface.md", "The model file: what you write"
    OWN_STEPS = "how-to/model-interface.md", "Training steps of your own"
    QUEUES = "how-to/scheduling.md", "Queues: Kueue"


def reference(section: Section) -> str:
    """Return the address of a section."""
    file, heading = section.value
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    return f"{ADDRESS}/{file.removesuffix('.md')}.html#{anchor}"
