"""A pipeline of two stages with PyTorch's schedule 1F1B over gloo."""

import torch
from torch import nn
from torch.distributed import pipelining

from benchmarks.peers import run, torch_data, torch_models, workloads


def main() -> None:
    """Train; the last stage knows the loss and reports."""
    contest = run.contest()
    torch_data.join(contest)
    layers = list(torch_models.build(contest.name, contest.weights()))
    size = len(layers) // contest.processes
    module = nn.Sequential(*layers[contest.rank * size : (contest.rank + 1) * size])
    stage = pipelining.PipelineStage(module, contest.rank, contest.processes, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(
        stage,
        workloads.MICROBATCHES,
        loss_fn=lambda output, y: torch_models.loss(contest.model, output, y),
    )
    optimizer = torch_models.optimizer(contest.model, list(module.parameters()), fused=True)
    is_last = contest.rank == contest.processes - 1
    for epoch, batches in enumerate(contest.epochs(shared=False)):
        total = 0.0
        for step, batch in enumerate(batches):
            x, y = torch_models.tensors(*batch)
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            if is_last:
                schedule.step(target=y, losses=losses)
                total += torch.stack(losses).mean().item()
            else:
                schedule.step(x)
            optimizer.step()
            if is_last and not epoch + step:
                run.report_first_step()
        if is_last:
            run.report_epoch(epoch + 1, total / len(batches))
    run.leave(reports=is_last)


if __name__ == "__main__":
    main()
