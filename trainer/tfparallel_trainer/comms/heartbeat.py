"""Ends a process whose peer ends while TensorFlow connects them.

Usage: heartbeat.py PID OWN_NAME FAILURE_FILE NAME=FD,FD...

TensorFlow would wait for that peer forever, and lets no other thread of Python run meanwhile. So
this program inherits the connections with the peers and writes the sentence that the process cannot
write. It imports the standard library alone and is run by its path with `python -I -S`, to start in
hundredths of a second; it ends with its standard input, which the process holds.
"""

import contextlib
import os
import pathlib
import select
import signal
import sys

_INPUT = 0


def main(process: int, task_name: str, failure_file: str, peers: dict[int, str]) -> None:
    """Watch until all connections with a peer have ended, or the standard input has."""
    watched = select.poll()
    for number in (_INPUT, *peers):
        watched.register(number, select.POLLIN)
    while True:
        for number, _ in watched.poll():
            if number == _INPUT:
                return
            watched.unregister(number)  # it has ended: nobody writes to it
            name = peers.pop(number)
            if name not in peers.values():
                _report_loss_of_peer(task_name, failure_file, name)
                # TensorFlow takes SIGTERM when it starts, but SIGALRM still ends the process.
                os.kill(process, signal.SIGALRM)
                return


def _report_loss_of_peer(task_name: str, failure_file: str, name: str) -> None:
    sentence = f"A peer was lost: {name} ended while TensorFlow connected the processes."
    print(f"[{task_name}] error: {sentence}", file=sys.stderr, flush=True)
    if failure_file:
        with contextlib.suppress(OSError):  # it is in the log
            pathlib.Path(failure_file).write_text(sentence, encoding="utf-8")


if __name__ == "__main__":
    pid, own_name, file, *groups = sys.argv[1:]
    main(
        int(pid),
        own_name,
        file,
        {
            int(number): name
            for name, _, numbers in (group.partition("=") for group in groups)
            for number in numbers.split(",")
        },
    )
