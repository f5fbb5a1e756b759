"""Tokens that vLLM computes to score choices: each alone, and together

    python benchmarks/scored_tokens.py --items 64

The real vLLM scores the same items with a tiny model in four ways (`_scoring.py`), and tells how
many tokens of each prompt it read from its prefix cache; it computed the others. The numbers are
exact and the same on every machine. But blocks of the cache have 32 tokens here, the fewest on a
CPU, and 16 on a GPU, where fewer tokens are computed.

- *alone*: one request to vLLM for each choice, and nothing is read from the cache. This is what
  vLLM does by default with prompts that it scores, and so what the harness gets.
- *alone, cached*: the cache is read. Where it hides a score, the choice is computed again.
- *together*: the choices of an item are asked for at once. A score that the cache hides is taken
  from another choice if one has it.
- *together, by ids*: what trials do, with vLLM from 0.25 on. Choices of one token take one request,
  and a single score that is hidden is asked for by the id of its token (`logprob_token_ids`).

Items are made of random tokens. In MMLU each choice is one token, and the examples are the same for
all items of a subject. In HellaSwag choices are sentences, and each item has its own examples. In
XNLI each choice is a whole text, with nothing before it but its examples.

Requests and tokens are for one item. The last column is the largest difference of a log-likelihood
from that of *alone*, in nats, with weights in float32; a greedy flag that differs is an error.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tiny import MAX_LENGTH, VOCABULARY, tiny_model

from benchmarks._scoring import SHAPES, WAYS, difference, greedy_flips, scored, scored_items

BLOCK = 32
"""Tokens of a block of the prefix cache: the fewest on a CPU."""

TOLERANCE = 1e-4
"""Largest difference of a log-likelihood that the order of sums in float32 explains."""


def main() -> None:
    """Score all datasets in each way and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=64, help="of each dataset (default 64)")
    items = max(1, parser.parse_args().items)
    names = [(shape, shots) for shape in SHAPES for shots in (0, 5)]
    datasets = [list(scored_items(shape, shots, items, VOCABULARY)) for shape, shots in names]
    args = {"block_size": BLOCK, "max_num_seqs": 32}
    found = scored(datasets, tiny_model(), MAX_LENGTH, args)
    table = Table(title=f"vLLM's work for one item, over {items} items")
    for heading in ("dataset", "shots", "scored"):
        table.add_column(heading)
    for heading in ("requests", "tokens computed", "ratio", "difference"):
        table.add_column(heading, justify="right")
    for (shape, shots), ways in zip(names, zip(*found, strict=True), strict=True):
        alone = ways[0]
        for way, one in zip(WAYS, ways, strict=True):
            if greedy_flips(alone, one) or difference(alone, one) > TOLERANCE:
                raise SystemExit(f"{shape.name}, {shots} shots: {way.name} scores differently")
            table.add_row(
                *(shape.name, str(shots), way.name),
                f"{one.asked / items:.2f}",
                f"{one.computed / items:.1f}",
                f"{one.computed / alone.computed:.2f}",
                f"{difference(alone, one):.1g}",
            )
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
