"""Gradients of soft and hard weightings, and hard attention trained to select."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from models.attention import ScoredAttention
from models.registry import build_preset
from tests.fixtures.command import ROOT

torch.set_num_threads(1)

# The task: eight keys, the query is the noisy image of one of them under a fixed matrix; the value there is the answer.
KEYS, DIM, ANSWERS = 8, 6, 4
Task = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(batch: int, image: Tensor) -> Task:
    """query [batch, 1, DIM], key [batch, KEYS, DIM], value [batch, KEYS, ANSWERS], target [batch]: the right key."""
    key = functional.normalize(torch.randn(batch, KEYS, DIM), dim=-1)
    target = torch.randint(0, KEYS, (batch,))
    query = key[torch.arange(batch), target] @ image + 0.05 * torch.randn(batch, DIM)
    value = functional.one_hot(torch.randint(0, ANSWERS, (batch, KEYS)), ANSWERS).float()
    return query.unsqueeze(1), key, value, target


def answer_loss(output: Tensor, value: Tensor, target: Tensor) -> Tensor:
    """Distance [batch] of what was taken from what stands at the right key."""
    return (output[:, 0] - value[torch.arange(len(target)), target]).square().sum(dim=-1)


def straight_through_loss(module: ScoredAttention, task: Task) -> Tensor:
    """The loss itself: its gradient is that of the soft choice."""
    query, key, value, target = task
    output, _ = module(query, key, value)
    return answer_loss(output, value, target).mean()


def reinforce_loss(module: ScoredAttention, task: Task) -> Tensor:
    """Reward times log-probability, the batch's mean reward taken off to lower the variance (Williams, 1992)."""
    query, key, value, target = task
    output, _, log_prob = module.sample(query, key, value)
    reward = -answer_loss(output, value, target)
    return -((reward - reward.mean()).detach() * log_prob[:, 0]).mean()


def train(module: ScoredAttention, loss_of: Callable[[ScoredAttention, Task], Tensor], image: Tensor) -> None:
    """300 steps of Adam at batch 256."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    module.train()
    for _ in range(300):
        optimizer.zero_grad()
        loss_of(module, draw(256, image)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.inference_mode()
def accuracy(module: ScoredAttention, image: Tensor) -> float:
    """Share of queries that take the right key, chosen hard."""
    query, key, value, target = draw(4000, image)
    _, weights = module.eval()(query, key, value)
    assert set(weights.flatten().tolist()) == {0.0, 1.0}
    return float((weights[:, 0].argmax(dim=-1) == target).float().mean())


@pytest.mark.parametrize(
    ("weighting", "loss_of"),
    [("gumbel", straight_through_loss), ("argmax", reinforce_loss)],
    ids=["straight-through", "REINFORCE"],
)
def test_hard_attention_learns_to_select(weighting: str, loss_of: Callable[[ScoredAttention, Task], Tensor]) -> None:
    torch.manual_seed(0)
    image = torch.linalg.qr(torch.randn(DIM, DIM)).Q * 4
    module = ScoredAttention(DIM, value_dim=ANSWERS, score="bilinear", weighting=weighting)
    before = accuracy(module, image)
    train(module, loss_of, image)
    after = accuracy(module, image)
    print(f"{weighting}: {before:.3f} -> {after:.3f}")
    assert before < 0.4
    assert after > 0.95


@pytest.mark.parametrize("form", ["straight-through", "REINFORCE"])
def test_the_training_of_the_guide_fits_the_preset(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (code,), (other,) = ([text for text in blocks if word in text] for word in ("train_hard.py", "module.sample"))
    if form == "REINFORCE":
        start, end = code.index("    output, _ = module"), code.index("    optimizer.zero_grad")
        code = code[:start] + other + code[end:]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    module = build_preset("argmax")
    module.load_state_dict(load_file("hard.safetensors"))
    key, place = torch.randn(500, 8, 64), torch.randint(0, 8, (500,))
    _, weights = module(key[range(500), place][:, None], key, key)
    assert (weights[range(500), 0, place] == 1).float().mean() > 0.95


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 6), torch.randn(2, 7, 6), torch.randn(2, 7, 2)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


@pytest.mark.parametrize("score", ["bilinear", "additive"])
def test_soft_attention_has_gradients_everywhere(score: str) -> None:
    module = ScoredAttention(6, value_dim=2, score=score)
    leaves = [*inputs(), *module.parameters()]
    output, _ = module(*leaves[:3])
    for gradient in torch.autograd.grad(output.square().sum(), leaves):
        assert (gradient != 0).all()


def test_argmax_has_none_for_scores() -> None:
    module = ScoredAttention(6, value_dim=2, score="bilinear", weighting="argmax")
    query, key, value = inputs()
    output, weights = module(query, key, value)
    assert not weights.requires_grad
    leaves = [query, key, *module.parameters()]
    assert torch.autograd.grad(output.sum(), leaves, allow_unused=True, retain_graph=True) == (None,) * len(leaves)
    (gradient,) = torch.autograd.grad(output.sum(), value)
    assert (gradient != 0).any()


def test_top_k_has_them_for_the_chosen_keys_only() -> None:
    module = ScoredAttention(6, value_dim=2, weighting="top_k", k=2)
    query, key, value = inputs()
    output, weights = module(query, key, value)
    (gradient,) = torch.autograd.grad(output.square().sum(), key)
    is_chosen = (weights != 0).any(dim=1)  # [batch, key_seq]
    assert (gradient[is_chosen] != 0).all()
    assert (gradient[~is_chosen] == 0).all()
    assert not is_chosen.all()
