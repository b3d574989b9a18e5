"""Builds what a release consists of: `make release-artifacts`; `make chart` for the chart alone."""


class ReleaseError(Exception):
    """Something a person can act on; the message is the whole report."""
