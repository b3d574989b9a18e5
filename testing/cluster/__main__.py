"""The command line: python -m testing.cluster --help."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from testing.cluster import binaries, console, folders, lifecycle, settings, state, workbench

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
MODES = (settings.Light.mode, settings.Full.mode, settings.Kind.mode)


def main(arguments: Sequence[str]) -> int:
    """Run one command; the answer goes to standard output, progress to standard error."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "up" and options.equipped and options.mode != settings.Full.mode:
        parser.error(
            f"--equipped needs --mode {settings.Full.mode}, and the mode is {options.mode}"
        )
    if "name" in options and options.name is None:
        options.name = f"tfparallel-{options.mode}"
    signal.signal(signal.SIGTERM, _end_on_signal)
    try:
        return int(COMMANDS[options.command](options))
    except console.ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _up(options: argparse.Namespace) -> int:
    cluster_settings: settings.Settings
    match options.mode:
        case settings.Light.mode:
            cluster_settings = settings.Light(
                jobs=options.jobs,
                controllers=options.controllers or options.nodes > 0,
                nodes=options.nodes,
                gpus=options.gpus,
                gang_scheduling=options.gang_scheduling,
                release=settings.Release(options.release),
            )
        case settings.Full.mode:
            cluster_settings = settings.Full(
                gpus=options.gpus,
                gang_scheduling=options.gang_scheduling,
                policies=options.policies,
            )
        case _:
            cluster_settings = settings.Kind(gpus=options.gpus)
    cluster = lifecycle.up(options.name, cluster_settings, options.dir)
    if not options.equipped:
        print(cluster.kubeconfig)
        return 0
    workbench.equip(cluster)
    console.say(
        f"{cluster.name} has both images and volumes. Next, in {folders.SOURCE.parents[1]}:"
    )
    print("\n".join(workbench.next_commands(cluster)))
    return 0


def _down(options: argparse.Namespace) -> int:
    names = lifecycle.names() if options.all else [options.name]
    for name in names:
        ended = lifecycle.down(name, options.dir)
        console.say(f"{name} has ended" if ended else f"{name} does not exist")
    return 0


def _status(options: argparse.Namespace) -> int:
    for name in lifecycle.names():
        cluster_state = state.load(folders.clusters() / name)
        if cluster_state is not None:
            condition = "running" if cluster_state.running() else "not running"
            print(f"{name}\t{cluster_state.mode}\t{condition}")
    return 0


def _binaries(options: argparse.Namespace) -> int:
    names = options.names or dict.fromkeys([*binaries.LIGHT, *binaries.FULL])
    binaries.ensure(names)
    for name in names:
        print(binaries.path(name))
    return 0


def _load_image(options: argparse.Namespace) -> int:
    lifecycle.require(options.name, options.dir).load_image(options.archive)
    return 0


def _enter(options: argparse.Namespace) -> int:
    command = options.arguments or [os.environ.get("SHELL", "/bin/sh")]
    inside = lifecycle.require(options.name, options.dir).inside(*command)
    os.execvp(inside[0], inside)  # noqa: S606 - the person asked for exactly this program


COMMANDS = {
    "up": _up,
    "down": _down,
    "status": _status,
    "binaries": _binaries,
    "load-image": _load_image,
    "enter": _enter,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testing.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    light, full = settings.Light.mode, settings.Full.mode

    up = _command(commands, "up", "start a cluster and print its kubeconfig", light)
    up.add_argument("--controllers", action="store_true", help="light: with controllers")
    up.add_argument("--nodes", type=int, default=0, help="light: so many nodes by KWOK")
    up.add_argument("--gpus", type=int, default=4, help="nvidia.com/gpu per node (%(default)s)")
    up.add_argument("--gang-scheduling", action="store_true", help="Kubernetes' own")
    up.add_argument("--jobs", action="store_true", help="light: with TFParallelJob defined")
    up.add_argument(
        "--release",
        choices=[*settings.Release],
        default=settings.Release.NEWEST,
        help="light: the module that pins Kubernetes (%(default)s)",
    )
    up.add_argument(
        "--equipped",
        action="store_true",
        help="full: with images and volumes; prints the next commands instead of the kubeconfig",
    )
    up.add_argument("--policies", action="store_true", help="full: enforces NetworkPolicies")
    down = _command(commands, "down", "end a cluster and remove its folder", light)
    down.add_argument("--all", action="store_true", help="all clusters in the cache folder")
    load = _command(commands, "load-image", "bring a docker-archive to the node", full)
    load.add_argument("archive", type=Path)
    enter = _command(commands, "enter", "run a command (a shell) inside a full cluster", full)
    enter.add_argument("arguments", nargs=argparse.REMAINDER)

    commands.add_parser("status", help="list the clusters in the cache folder")
    build = commands.add_parser("binaries", help="build programs and print their paths")
    build.add_argument("names", nargs="*", choices=[[], *binaries.TARGETS], metavar="NAME")
    return parser


def _command(commands: Commands, name: str, purpose: str, mode: str) -> argparse.ArgumentParser:
    """A command about one cluster, which is named after its mode when it is not named."""
    command = commands.add_parser(name, help=purpose)
    command.add_argument("--mode", choices=MODES, default=mode, help="(%(default)s)")
    command.add_argument("--name", help="the cluster's name (tfparallel-MODE)")
    command.add_argument("--dir", type=Path, help="its folder (else found by name in the cache)")
    return command


def _end_on_signal(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C, so that `up` cleans up after itself."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
