#!/usr/bin/env python3
"""Generates text token by token (LLM decoding with a KV cache), as CUDA graphs or kernel by kernel.

    sbatch --fill=mem=16G infer.sh
    # infer.sh: python3 -m deploy.examples.infer_decode --tokens 20000 --graph

A decode step is some hundred small kernels. As a CUDA graph it is one launch, and so one operation
for the gate: short enough (a millisecond or two) to fit nearly any bubble. Weights are random: put
your own in `Decoder`. The count of tokens done is kept in --progress, so that a requeue goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from deploy.examples.loop import first_device


@dataclass(frozen=True)
class DecodeShape:
    """Size of the model, of its cache and of what is decoded at once."""

    width: int = 2048
    layers: int = 16
    heads: int = 16
    vocabulary: int = 32000
    sequences: int = 16
    context: int = 1024


class Layer(nn.Module):
    """Attention over the cache and a feed-forward part, for one new token of each sequence."""

    def __init__(self, shape: DecodeShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        rows = (shape.sequences, shape.heads, shape.context, width // shape.heads)
        self.register_buffer("keys", torch.zeros(rows), persistent=False)
        self.register_buffer("values", torch.zeros(rows), persistent=False)

    def forward(
        self, hidden: torch.Tensor, position: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        shape = self.shape
        rows = (shape.sequences, shape.heads, 1, shape.width // shape.heads)
        query, key, value = (part.view(rows) for part in self.qkv(self.norm_1(hidden)).chunk(3, -1))
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        seen = nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask
        )
        hidden = hidden + self.out(seen.reshape(shape.sequences, shape.width))
        return hidden + self.down(nn.functional.gelu(self.up(self.norm_2(hidden))))


class Decoder:
    """step() makes one more token of each sequence, from the one made before."""

    def __init__(self, shape: DecodeShape, device: torch.device, graph: bool) -> None:
        torch.manual_seed(7)
        self.shape, self.device = shape, device
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.embedding = nn.Embedding(shape.vocabulary, shape.width).to(device, kind)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers)).to(device, kind)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False).to(device, kind)
        self.tokens = torch.zeros(shape.sequences, dtype=torch.long, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        self.places = torch.arange(shape.context, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if graph and device.type == "cuda":
            self._capture()

    @torch.inference_mode()
    def _token(self) -> None:
        """All of one step on the GPU: positions are counted there too, so a graph can do it."""
        position = self.count % self.shape.context  # a full cache loses its oldest token
        mask = (self.places <= self.count).view(1, 1, 1, -1)
        hidden = self.embedding(self.tokens)
        for layer in self.layers:
            hidden = layer(hidden, position, mask)
        self.tokens.copy_(self.head(hidden).argmax(-1))
        self.count.add_(1)

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazy set-up of libraries must not be captured
            for _ in range(3):
                self._token()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._token()

    def step(self) -> torch.Tensor:
        """One token of each sequence; still being computed when this returns."""
        if self.graph is not None:
            self.graph.replay()
        else:
            self._token()
        return self.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, required=True, help="of each sequence, in all")
    parser.add_argument("--graph", action="store_true", help="one CUDA graph a step")
    parser.add_argument("--progress", type=Path, help="file that keeps how many are done")
    options = parser.parse_args()
    done = 0
    if options.progress and options.progress.exists():
        done = int(json.loads(options.progress.read_text())["done"])
    decoder = Decoder(DecodeShape(), first_device(), options.graph)
    began, first = time.monotonic(), done
    while done < options.tokens:
        token = decoder.step()
        done += 1
        if done % 64 == 0 or done == options.tokens:
            token.cpu()  # the host keeps at most 64 steps ahead
            if options.progress:
                options.progress.write_text(json.dumps({"done": done}))
    rate = (done - first) / max(time.monotonic() - began, 1e-9)
    print(json.dumps({"tokens": done, "steps_per_s": rate}), flush=True)


if __name__ == "__main__":
    main()
