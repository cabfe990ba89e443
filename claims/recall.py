"""How far back a trained model recalls the first symbol of a sequence, over distractors of the same alphabet.

Three models of the same width see the same batches, as many of them, under the same optimiser. They are trained twice:
once on all distances from the first batch on, once on short distances first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.recurrent import LstmEncoder
from models.seq2seq import AttentionSeq2Seq, FixedContextSeq2Seq, Seq2Seq

NUM_SYMBOLS = 8
DIM = 32
BATCH = 32
NUM_UPDATES = 1500
LEARNING_RATE = 3e-3
MAX_GRAD_NORM = 1.0
MAX_TRAINED = 120  # distractors
DISTANCES = (1, 2, 5, 10, 20, 35, 50, 75, 100, 125, 150, 200)
NUM_TESTED = 1000  # sequences a distance
TEST_SEED = 10_000
SEEDS = (0, 1, 2)
# Where short distances come first, the longest one is reached after this share of the updates.
RAMP = 0.6

SCHEDULES = {"mixed": "all distances from the start", "ramp": "short distances first"}


class LastState(nn.Module):
    """The state of an LSTM after the last symbol, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS, DIM)
        self.encoder = LstmEncoder(DIM, DIM)
        self.output = nn.Linear(DIM, NUM_SYMBOLS)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, seq] -> logits [batch, symbols]."""
        logits: Tensor = self.output(self.encoder(self.embedding(ids))[1])
        return logits


class OneStep(nn.Module):
    """An encoder–decoder that is asked for one symbol."""

    def __init__(self, kind: type[Seq2Seq]) -> None:
        super().__init__()
        self.model = kind(NUM_SYMBOLS, NUM_SYMBOLS, DIM)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, seq] -> logits [batch, symbols]."""
        logits: Tensor = self.model(ids, ids.new_zeros(len(ids), 1))[0].squeeze(1)
        return logits


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "LSTM, last state": LastState,
    "encoder–decoder, one fixed vector": lambda: OneStep(FixedContextSeq2Seq),
    "encoder–decoder, attention": lambda: OneStep(AttentionSeq2Seq),
}


@dataclass(frozen=True, slots=True)
class Recall:
    """One trained model: accuracy by distance, and the seconds of a processor that its training took."""

    model: str
    schedule: str
    seed: int
    accuracy: Mapping[int, float]
    train_s: float


def train_and_test(model_name: str, schedule: str, seed: int) -> Recall:
    """Train one model of `MODELS` under a schedule of `SCHEDULES`, on one core; then test it at each distance."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = MODELS[model_name]()
    start = time.process_time()
    _train(model, schedule, torch.Generator().manual_seed(seed))
    train_s = time.process_time() - start
    return Recall(model_name, schedule, seed, _test(model), train_s)


def longest(update: int, schedule: str) -> int:
    """The longest distance of a batch: random ones are drawn from 1 up to it."""
    reached = MAX_TRAINED if schedule == "mixed" else int(update * MAX_TRAINED / (RAMP * NUM_UPDATES))
    return min(max(reached, 1), MAX_TRAINED)


def _train(model: nn.Module, schedule: str, generator: torch.Generator) -> None:
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    for update in range(NUM_UPDATES):
        distance = int(torch.randint(1, longest(update, schedule) + 1, (), generator=generator))
        ids = _draw(BATCH, distance, generator)
        loss = functional.cross_entropy(model(ids), ids[:, 0])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()


@torch.inference_mode()
def _test(model: nn.Module) -> dict[int, float]:
    generator = torch.Generator().manual_seed(TEST_SEED)
    accuracy = {}
    for distance in DISTANCES:
        ids = _draw(NUM_TESTED, distance, generator)
        accuracy[distance] = int((model(ids).argmax(dim=-1) == ids[:, 0]).sum()) / NUM_TESTED
    return accuracy


def _draw(batch: int, distance: int, generator: torch.Generator) -> Tensor:
    """Sequences whose first symbol is `distance` steps before the last: [batch, distance + 1]."""
    return torch.randint(NUM_SYMBOLS, (batch, distance + 1), generator=generator)
