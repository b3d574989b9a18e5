"""The command line: python3 -m images [operator] [trainer]; `make images` passes its variables."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from images import engines, programs, targets

LOGS = Path("build/images")


def main(arguments: Sequence[str]) -> int:
    """Build the images; the names of those that are built go to standard output."""
    try:
        for reference in _build(_parse(arguments)):
            print(reference, flush=True)
    except (programs.ImageError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m images", description="Build the images of the Dockerfile, and push them."
    )
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help=f"{' or '.join(targets.TARGETS)}; both by default",
    )
    parser.add_argument("--engine", default="", help="docker, podman or buildah")
    parser.add_argument("--registry", default="", help="such as registry.example/team")
    parser.add_argument("--tag", default="", help="the version by default")
    parser.add_argument("--push", action="store_true", help="push the images to the registry")
    parser.add_argument("--base-image", default="", help=f"{engines.BASE_IMAGE} by default")
    parser.add_argument(
        "--requirements", default="", help="of the trainer, such as requirements/trainer-cuda.txt"
    )
    parser.add_argument("--archives", type=Path, help="folder for a docker-archive of each image")
    options = parser.parse_args(arguments)
    unknown = set(options.targets) - {*targets.TARGETS}
    if unknown:
        parser.error(f"unknown target {min(unknown)}: write {' or '.join(targets.TARGETS)}")
    return options


def _build(options: argparse.Namespace) -> Iterator[str]:
    """Build, write and push the images; yield the name of each."""
    registry, tag = targets.parse_registry(options.registry), targets.parse_tag(options.tag)
    if options.push and not registry:
        raise ValueError("PUSH needs REGISTRY, such as REGISTRY=registry.example/team")
    engine = engines.find(options.engine)
    LOGS.mkdir(parents=True, exist_ok=True)
    for name in options.targets or targets.TARGETS:
        target, log = targets.TARGETS[name], LOGS / f"{name}.log"
        reference = target.full_reference(registry, tag)
        base_image = options.base_image or engines.BASE_IMAGE
        programs.say(f"building {reference} with {engine.name}; the output goes to {log}")
        engine.build(engines.Build(target, reference, base_image, options.requirements), log)
        if options.archives is not None:
            options.archives.mkdir(parents=True, exist_ok=True)
            archive = options.archives / f"{target.repository}.tar"
            archive.unlink(missing_ok=True)
            programs.say(f"writing {archive}")
            engine.write(reference, archive, log)
        if options.push:
            programs.say(f"pushing {reference}")
            engine.push(reference, log)
        yield reference


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
