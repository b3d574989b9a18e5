"""The command line: python -m testing.images [operator] [trainer]."""

import argparse
import sys
from collections.abc import Sequence

from testing.cluster import console as cluster_console
from testing.images import build, inputs


def main(arguments: Sequence[str]) -> int:
    """Build what is missing; the archives' paths go to standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m testing.images",
        description="Build the images of the Dockerfile and print the docker-archives' paths.",
    )
    parser.add_argument(
        "targets",
        nargs="*",
        choices=[[], *inputs.TARGETS],
        metavar="TARGET",
        help=f"{' or '.join(inputs.TARGETS)}; all of them by default",
    )
    chosen = parser.parse_args(arguments).targets or list(inputs.TARGETS)
    try:
        for image in build.ensure(inputs.TARGETS[name] for name in chosen):
            print(f"{image.reference}\t{image.archive}")
    except cluster_console.ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
