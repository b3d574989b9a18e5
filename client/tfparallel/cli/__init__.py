"""The command `tfparallel`: one module for each verb.

`app` lists the verbs and turns errors into sentences and exit statuses; `options` holds the options
that several verbs take. A verb reads its arguments, calls another package and prints the result.
"""


def main() -> None:
    """Run the command line."""
    from tfparallel.cli import app

    app.tfparallel()
