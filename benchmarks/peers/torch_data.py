"""PyTorch's DistributedDataParallel over gloo, or a plain loop in one process."""

import torch
from torch import distributed
from torch.nn import parallel

from benchmarks.peers import run, torch_models


def main() -> None:
    """Train; the first process reports."""
    contest = run.contest()
    join(contest)
    module = torch_models.build(contest.name, contest.weights())
    if contest.processes > 1:
        module = parallel.DistributedDataParallel(module)
    train(contest, module)


def join(contest: run.Contest) -> None:
    """Compute with one thread, and meet the other processes if there are any."""
    torch.set_num_threads(1)
    if contest.processes > 1:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{contest.addresses[0]}",
            rank=contest.rank,
            world_size=contest.processes,
        )


def train(contest: run.Contest, module: torch.nn.Module, *, is_divided: bool = False) -> None:
    """Train on this process's share of each batch, or on all of it if the layers are divided."""
    shared = not is_divided
    # The fused Adam takes either divided parameters or others.
    parameters = list(module.parameters())
    optimizer = torch_models.optimizer(contest.model, parameters, fused=shared)
    for epoch, batches in enumerate(contest.epochs(shared=shared)):
        losses = 0.0
        for step, batch in enumerate(batches):
            x, y = torch_models.tensors(*batch)
            optimizer.zero_grad()
            loss = torch_models.loss(contest.model, module(x), y)
            loss.backward()
            optimizer.step()
            losses += loss.item()
            if not epoch + step and contest.reports:
                run.report_first_step()
        mean = torch.tensor(losses / len(batches))
        if shared and contest.processes > 1:
            distributed.all_reduce(mean)
            mean /= contest.processes
        if contest.reports:
            run.report_epoch(epoch + 1, mean.item())
    run.leave(reports=contest.reports)


if __name__ == "__main__":
    main()
