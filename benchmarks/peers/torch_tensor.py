"""The decoder with layers that are divided by columns and rows, as PyTorch's DTensor does it."""

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.peers import run, torch_data, torch_models, workloads

BLOCK = {
    "attention.query": ColwiseParallel,
    "attention.key": ColwiseParallel,
    "attention.value": ColwiseParallel,
    "attention.out": RowwiseParallel,
    "wide": ColwiseParallel,
    "narrow": RowwiseParallel,
}


def main() -> None:
    """Train; the first process reports."""
    contest = run.contest()
    torch_data.join(contest)
    mesh = init_device_mesh("cpu", (contest.processes,))
    module = torch_models.build(contest.name, contest.weights())
    plan = {
        f"{block}.{layer}": division()
        for block in range(1, workloads.BLOCKS + 1)
        for layer, division in BLOCK.items()
    }
    plan[str(workloads.BLOCKS + 2)] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(module, mesh, plan)
    torch_data.train(contest, module, is_divided=True)


if __name__ == "__main__":
    main()
