"""Writers of the measured pages in docs/."""
