"""PyTorch's DistributedDataParallel over gloo under torchrun, with a checkpoint of each epoch.

It trains until it is ended. The first process writes a line for each step.
"""

import itertools
import json
import os
import pathlib
import sys
import time

import torch
from torch import distributed
from torch.nn import parallel

from benchmarks.peers import run, torch_models


def main(folder: pathlib.Path) -> None:
    """Train from the newest checkpoint in a folder on."""
    torch.set_num_threads(1)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", store=_store(), rank=rank, world_size=count)
    contest = run.contest()
    module = parallel.DistributedDataParallel(torch_models.build(contest.name, contest.weights()))
    optimizer = torch_models.optimizer(contest.model, list(module.parameters()), fused=True)
    checkpoint, done = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epochs"]
    x, y = contest.examples()
    batch = contest.model.batch
    share = batch // count
    with (folder / "steps.jsonl").open("a", buffering=1) as log:
        for epoch in itertools.count(done):
            for step in range(contest.model.steps):
                begin = step * batch + rank * share
                rows = slice(begin, begin + share)
                optimizer.zero_grad()
                inputs, labels = torch_models.tensors(x[rows], y[rows])
                torch_models.loss(contest.model, module(inputs), labels).backward()
                optimizer.step()
                if rank == 0:
                    number = epoch * contest.model.steps + step + 1
                    log.write(json.dumps({"step": number, "time": time.time()}) + "\n")
            if rank == 0:
                state = {
                    "module": module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epochs": epoch + 1,
                }
                torch.save(state, folder / "new.pt")
                os.replace(folder / "new.pt", checkpoint)
            distributed.barrier()


def _store() -> distributed.Store:
    """Return a part of torchrun's store for this attempt.

    In the store itself (PyTorch 2.15.0), the processes of gloo find the addresses of the attempt
    before, and wait for them.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, is_master=False)
    return distributed.PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
