"""Where the documentation is, and the sections that messages name.

A message names an address if somebody publishes the site, else a file: of the wheel of the command,
or of the repository.
"""

import enum
import os
import pathlib
import re
import sys

from tfparallel_trainer.contract import environment

ADDRESS = ""
"""Where this version's site is published; empty: nowhere. `site_url` of mkdocs.yml has it too."""

INSTALLED = pathlib.PurePath("share/doc/tfparallel")
"""Where the wheel of the command brings the pages, below `sys.prefix`."""

REPOSITORY = pathlib.Path(__file__).parents[3]

REASONS = "reference/reasons.md"
"""The page on conditions, reasons and exit codes: each has its name in lower case as an anchor."""


class Section(enum.Enum):
    """Every section that a message names: its page in docs/, and its heading."""

    EVERY_TFJOB = "how-to/tfjob.md", "Differences for every TFJob"
    EVERY_TRAINJOB = "how-to/trainjob.md", "Differences for every TrainJob"
    GANG_SCHEDULER = "how-to/scheduling.md", "When the scheduler is not installed"
    KERAS_FIT = "how-to/old-scripts.md", "Keras' fit"
    LOCAL_NETWORK = "how-to/local.md", "Who can reach a run"
    MODEL_FILE = "how-to/model-interface.md", "The model file: what you write"
    SEPARATE_TRAINING = "how-to/old-scripts.md", "Replicas that train separate models"
    OWN_STEPS = "how-to/model-interface.md", "Training steps of your own"
    TIME_SPENT = "how-to/report.md", "Where the time went"
    QUEUES = "how-to/scheduling.md", "Queues: Kueue"


def reference(section: Section) -> str:
    """Return where a section is."""
    page, heading = section.value
    return locate(page, re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))


def locate(page: str, anchor: str) -> str:
    """Return where a place in a page is: an address, or a file that a reader of messages has."""
    address = os.environ.get(environment.DOCUMENTATION, ADDRESS).rstrip("/")
    if address:
        return f"{address}/{page.removesuffix('.md')}.html#{anchor}"
    in_repository = pathlib.Path("docs", page)
    installed = pathlib.Path(sys.prefix, INSTALLED, page)
    is_installed = installed.is_file() and not (REPOSITORY / in_repository).is_file()
    return f"{installed if is_installed else in_repository}#{anchor}"
