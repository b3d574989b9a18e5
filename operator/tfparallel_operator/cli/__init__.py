"""The command `tfparallel`."""

import sys


def main() -> None:
    """Run the command line; what the command needs beyond the operator comes by an extra."""
    try:
        from tfparallel_operator.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        sys.exit("error: rich is not installed; run: pip install 'tfparallel-operator[cli]'")
    app.tfparallel()
