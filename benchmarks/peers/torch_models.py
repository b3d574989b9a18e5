"""The models of `workloads.py` in PyTorch, with weights from Keras."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import workloads


class ChannelsLast(nn.Module):
    """Flattens images in the order of Keras: height, width, channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class Attention(nn.Module):
    """Causal attention; its heads may be divided among devices."""

    def __init__(self) -> None:
        super().__init__()
        width = workloads.WIDTH
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = workloads.WIDTH // workloads.HEADS
        parts = [layer(x) for layer in (self.query, self.key, self.value)]
        query, key, value = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of the decoder."""

    def __init__(self) -> None:
        super().__init__()
        width = workloads.WIDTH
        self.before = nn.LayerNorm(width, eps=workloads.EPSILON)
        self.attention = Attention()
        self.between = nn.LayerNorm(width, eps=workloads.EPSILON)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        ChannelsLast(),
        nn.Linear(1600, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _dense() -> nn.Module:
    sizes = workloads.FEATURES, workloads.FEATURES
    hidden = [
        layer for _ in range(workloads.LAYERS - 1) for layer in (nn.Linear(*sizes), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(*sizes))


def _decoder() -> nn.Module:
    blocks = [Block() for _ in range(workloads.BLOCKS)]
    normal = nn.LayerNorm(workloads.WIDTH, eps=workloads.EPSILON)
    table = nn.Embedding(workloads.WORDS, workloads.WIDTH)
    return nn.Sequential(table, *blocks, normal, nn.Linear(workloads.WIDTH, workloads.WORDS))


def _embedding() -> nn.Module:
    table = nn.Embedding(workloads.ROWS, workloads.TABLE_WIDTH, sparse=True)
    hidden = nn.Linear(workloads.IDS * workloads.TABLE_WIDTH, 64)
    return nn.Sequential(table, nn.Flatten(), hidden, nn.ReLU(), nn.Linear(64, 1))


def _stack() -> nn.Module:
    sizes = workloads.STACK_WIDTH, workloads.STACK_WIDTH
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(*sizes), nn.Tanh()) for _ in range(workloads.STACK))
    )


BUILD: dict[str, Callable[[], nn.Module]] = {
    "cnn": _convolutions,
    "dense": _dense,
    "decoder": _decoder,
    "embedding": _embedding,
    "stack": _stack,
}


def build(name: str, weights: Sequence[np.ndarray]) -> nn.Module:
    """Build a model with weights from Keras, which names them in the same order."""
    model = BUILD[name]()
    with torch.no_grad():
        for (title, parameter), weight in zip(model.named_parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(_converted(title, weight)))
    return model


def _converted(title: str, weight: np.ndarray) -> np.ndarray:
    """A weight of Keras in PyTorch's layout."""
    if ".out." in title and weight.ndim == 3:  # [heads, size, width]
        return weight.reshape(-1, weight.shape[-1]).T.copy()
    if weight.ndim == 3:  # [width, heads, size]
        return weight.reshape(len(weight), -1).T.copy()
    if weight.ndim == 4:
        return weight.transpose(3, 2, 0, 1).copy()
    if weight.ndim == 2 and ".attention." in title:  # a bias [heads, size]
        return weight.reshape(-1)
    is_table = weight.shape in (
        (workloads.WORDS, workloads.WIDTH),
        (workloads.ROWS, workloads.TABLE_WIDTH),
    )
    return weight if weight.ndim == 1 or is_table else weight.T.copy()


def optimizer(
    model: workloads.Model, parameters: Sequence[nn.Parameter], *, fused: bool
) -> torch.optim.Optimizer:
    """The optimizer of a model; the fused Adam is the fastest on a CPU."""
    if model.is_adam:
        return torch.optim.Adam(parameters, model.learning_rate, eps=1e-7, fused=fused)
    return torch.optim.SGD(parameters, model.learning_rate)


def loss(model: workloads.Model, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean loss of a batch."""
    if model.loss == "classes":
        return functional.cross_entropy(output.flatten(0, -2), y.flatten())
    if model.loss == "binary":
        return functional.binary_cross_entropy_with_logits(output, y)
    return functional.mse_loss(output, y)


def tensors(x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch, with channels before height and width."""
    images = torch.from_numpy(x)
    return images.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else images, torch.from_numpy(y)
