#!/usr/bin/env python3
"""Batch inference over a JSONL file that may be stopped at any moment and loses nothing.

Reads lines `{"id": ..., "text": ...}`, scores each text with a transformer and appends
`{"id": ..., "score": ...}` to the output. Progress is the output itself: a batch is written with
one append, and after a restart a torn last line is cut off and all ids that are already there are
passed over. So a requeue repeats no item and loses none:

    sbatch --fill=mem=16G infer.sh      # infer.sh: python3 infer_jsonl.py in.jsonl out.jsonl

The weights are random (this example ships no model): put your own in `build_model`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

WIDTH, LAYERS, HEADS = 1024, 12, 16


def build_model(device: torch.device) -> nn.Module:
    """A 12-layer transformer with a scoring head, in bfloat16."""
    torch.manual_seed(7)
    block = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )
    model = nn.Sequential(
        nn.Embedding(256, WIDTH),
        nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False),
        nn.Linear(WIDTH, 1),
    )
    return model.to(device, torch.bfloat16).eval()


def finished_ids(output: Path) -> set[str]:
    """The ids that the output already holds; cuts off a last line that was not written whole."""
    if not output.exists():
        return set()
    data = output.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        os.truncate(output, len(whole))
    return {str(json.loads(line)["id"]) for line in whole.splitlines()}


def batches(source: Path, done: set[str], size: int) -> Iterator[list[dict[str, str]]]:
    """Items not yet done, in the file's order, `size` at a time."""
    batch: list[dict[str, str]] = []
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                item = json.loads(line)
                identity, text = str(item["id"]), str(item["text"])
            except (ValueError, KeyError, TypeError) as error:
                message = f"{source}, line {number}: need an object with id and text ({error})"
                raise SystemExit(message) from error
            if identity in done:
                continue
            batch.append({"id": identity, "text": text})
            if len(batch) == size:
                yield batch
                batch = []
    if batch:
        yield batch


def encode(batch: list[dict[str, str]], tokens: int) -> torch.Tensor:
    """Texts as bytes, cut or padded with 0 to `tokens`: shape (batch, tokens)."""
    rows = [item["text"].encode()[:tokens].ljust(tokens, b"\0") for item in batch]
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(len(batch), tokens)


@torch.inference_mode()
def run(source: Path, output: Path, size: int, tokens: int, seconds: float) -> dict[str, float]:
    """Scores what is left; stops early after `seconds` (0: never). Returns counts and the rate."""
    device = torch.device("cuda", 0)
    done = finished_ids(output)
    before = len(done)
    model = build_model(device)
    began = time.monotonic()
    first_done = 0.0
    count = items = 0
    with output.open("ab", buffering=0) as sink:
        for batch in batches(source, done, size):
            inputs = encode(batch, tokens).to(device).int()
            scores = model(inputs)[:, 0, 0].float().cpu().tolist()
            lines = (
                json.dumps({"id": item["id"], "score": round(score, 4)})
                for item, score in zip(batch, scores, strict=True)
            )
            sink.write(("\n".join(lines) + "\n").encode())
            count += 1
            items += len(batch)
            now = time.monotonic()
            if count == 1:
                first_done = now
            if seconds and now - began >= seconds:
                break
        os.fsync(sink.fileno())
    spent = time.monotonic() - first_done
    rate = (count - 1) / spent if count > 1 and spent > 0 else 0.0
    return {
        "items": items,
        "items_before": before,
        "batches": count,
        "batches_per_s": rate,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: never")
    parser.add_argument("--make-input", type=int, default=0, help="first write so many lines")
    options = parser.parse_args()
    if options.make_input:
        with options.source.open("w", encoding="utf-8") as made:
            for number in range(options.make_input):
                made.write(json.dumps({"id": number, "text": f"sentence {number} " * 12}) + "\n")
    if not options.source.exists():
        parser.error(f"{options.source} does not exist; give a JSONL file or --make-input N")
    result = run(options.source, options.output, options.batch, options.tokens, options.seconds)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
