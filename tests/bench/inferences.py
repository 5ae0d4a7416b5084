"""The inferences that fill, by name. Each launches one batch at a time and never waits itself.

`tiny` sizes run on a CPU within milliseconds: they are for dry runs and give no figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from deploy.examples.infer_decode import Decoder, DecodeShape

Launch = Callable[[], torch.Tensor]  # launches a batch; its result, still being computed

TINY_DECODE = DecodeShape(width=32, layers=2, heads=2, vocabulary=64, sequences=2, context=16)


def _tiny_transformer(device: torch.device) -> nn.Module:
    block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(256, 32), encoder, nn.Linear(32, 1)).to(device).eval()


def transformer(device: torch.device, tiny: bool, batch: int) -> Launch:
    """12 layers, width 1024, bfloat16, 256 tokens a row, kernel by kernel."""
    from deploy.examples.infer_jsonl import build_model

    model = _tiny_transformer(device) if tiny else build_model(device)
    rows, tokens = (2, 8) if tiny else (batch, 256)
    inputs = torch.randint(0, 256, (rows, tokens), device=device)

    def launch() -> torch.Tensor:
        scores: torch.Tensor = model(inputs)[:, 0, 0].float()
        return scores

    return launch


def as_graph(launch: Launch) -> Launch:
    """The same batch as one CUDA graph."""
    if not torch.cuda.is_available():
        return launch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # lazy set-up of libraries must not be captured
        for _ in range(3):
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = launch()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


class Bottleneck(nn.Module):
    """A residual block: 1x1, 3x3, 1x1 convolutions."""

    def __init__(self, channels: int, inner: int, out: int, stride: int) -> None:
        super().__init__()

        def convolution(come: int, go: int, size: int, step: int) -> nn.Sequential:
            layer = nn.Conv2d(come, go, size, step, padding=size // 2, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(go))

        self.first = convolution(channels, inner, 1, 1)
        self.second = convolution(inner, inner, 3, stride)
        self.third = convolution(inner, out, 1, 1)
        same = channels == out and stride == 1
        self.around: nn.Module = nn.Identity() if same else convolution(channels, out, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(images))
        hidden = torch.relu(self.second(hidden))
        return torch.relu(self.third(hidden) + self.around(images))


def residual_net(depths: tuple[int, ...] = (3, 4, 6, 3), base: int = 64) -> nn.Module:
    """A convolutional net of the ResNet family, random weights."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, base, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(base),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = base
    for stage, depth in enumerate(depths):
        inner = base << stage
        for place in range(depth):
            stride = 2 if stage and not place else 1
            layers.append(Bottleneck(channels, inner, 4 * inner, stride))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1))


def convnet(device: torch.device, tiny: bool, batch: int) -> Launch:
    """50 layers of convolutions on images of 224 x 224, bfloat16, kernel by kernel."""
    torch.manual_seed(7)
    model = (residual_net((1, 1), 8) if tiny else residual_net()).to(device).eval()
    images = torch.randn((2, 3, 32, 32) if tiny else (2 * batch, 3, 224, 224), device=device)
    if not tiny:
        model = model.to(torch.bfloat16).to(memory_format=torch.channels_last)
        images = images.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)

    def launch() -> torch.Tensor:
        scores: torch.Tensor = model(images)[:, 0].float()
        return scores

    return launch


def decode(device: torch.device, tiny: bool, graph: bool) -> Launch:
    """One token of each of 16 sequences: 16 layers, width 2048, bfloat16, cache of 1024 tokens."""
    decoder = Decoder(TINY_DECODE if tiny else DecodeShape(), device, graph)
    return decoder.step


NAMES = ("transformer", "transformer-graph", "decode", "decode-graph", "convnet")


def build(name: str, device: torch.device, tiny: bool, batch: int) -> Launch:
    """The inference of that name; batch: rows of a transformer's batch, half a convnet's."""
    with torch.inference_mode():
        if name == "transformer":
            return transformer(device, tiny, batch)
        if name == "transformer-graph":
            return as_graph(transformer(device, tiny, batch))
        if name == "convnet":
            return convnet(device, tiny, batch)
        return decode(device, tiny, graph=name == "decode-graph")


class TwoInFlight:
    """Runs batches, each waited for only when the next has been launched."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._rows: list[torch.Tensor] = []
        self._ended: list[Any] = []
        self._turn = 0
        self._gpu = torch.cuda.is_available()

    def batch(self) -> None:
        """Launches one batch and waits for the one before it."""
        result = self._launch()
        if not self._gpu:
            return
        if not self._rows:
            self._rows = [torch.empty_like(result, device="cpu").pin_memory() for _ in range(2)]
        self._rows[self._turn].copy_(result, non_blocking=True)
        self._turn = 1 - self._turn
        event = torch.cuda.Event()
        event.record()
        self._ended.append(event)
        if len(self._ended) == 2:
            self._ended.pop(0).synchronize()

    def drain(self) -> None:
        """Waits for all that was launched."""
        while self._ended:
            self._ended.pop(0).synchronize()
