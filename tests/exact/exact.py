"""Expected gradients of estimators and losses by enumerating everything that can happen.

A policy over short texts is a table of logits; every group of K responses is one outcome with a
known probability. The expected gradient of Σ w·ℓ over all outcomes is compared with the gradient
of the objective that the algorithm is said to have.
"""

import itertools
from dataclasses import dataclass

import torch

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import ModelOutput
from bestiary.roles.row_weights import row_weights

REGISTRY = load_plugins().registry


@dataclass(frozen=True)
class World:
    """All responses of one prompt.

    Args:
        logits: [S, A], one row of logits for each state.
        paths: for each response the (state, action) of its tokens.
        rewards: of each response.
        reference: [S, A] logits of the reference.
    """

    logits: torch.Tensor
    paths: tuple[tuple[tuple[int, int], ...], ...]
    rewards: torch.Tensor
    reference: torch.Tensor

    def token_logprobs(self, logits):
        """[N, T] log-probabilities of every response's tokens, 0 where padded, and the mask."""
        table = torch.log_softmax(logits, -1)
        width = max(map(len, self.paths))
        rows = [
            torch.stack(
                [table[s, a] for s, a in path] + [table.new_zeros(())] * (width - len(path))
            )
            for path in self.paths
        ]
        mask = torch.tensor([[t < len(path) for t in range(width)] for path in self.paths])
        return torch.stack(rows), mask

    def probabilities(self, logits):
        return self.token_logprobs(logits)[0].sum(-1).exp()

    def greedy(self):
        """The response of the most probable action in each state."""
        best = self.logits.argmax(-1).tolist()
        return next(i for i, p in enumerate(self.paths) if all(best[s] == a for s, a in p))

    def values(self):
        """[N, T] the exact value of each response's states."""
        p = self.probabilities(self.logits)
        out = torch.zeros_like(self.token_logprobs(self.logits)[0])
        for i, path in enumerate(self.paths):
            for t in range(len(path)):
                same = [j for j, q in enumerate(self.paths) if q[:t] == path[:t]]
                out[i, t] = (p[same] * self.rewards[same]).sum() / p[same].sum()
        return out


def bandit():
    """Three arms."""
    return World(
        torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64),
        (((0, 0),), ((0, 1),), ((0, 2),)),
        torch.tensor([1.0, 0.0, 0.25], dtype=torch.float64),
        torch.tensor([[0.0, 0.4, -0.1]], dtype=torch.float64),
    )


def tree():
    """Two steps: the first action leads to one of two states, or ends the response."""
    return World(
        torch.tensor([[0.2, -0.1, 0.4], [0.5, -0.3, -9.0], [-0.4, 0.1, -9.0]], dtype=torch.float64),
        (((0, 0), (1, 0)), ((0, 0), (1, 1)), ((0, 0), (1, 2)), ((0, 1), (2, 0)),
         ((0, 1), (2, 1)), ((0, 1), (2, 2)), ((0, 2),)),
        torch.tensor([1.0, 0.0, 0.3, 0.5, -1.0, 0.3, 0.2], dtype=torch.float64),
        torch.tensor([[0.0, 0.3, 0.1], [0.1, 0.2, -9.0], [0.0, -0.2, -9.0]], dtype=torch.float64),
    )  # fmt: skip


def objective(world, beta=0.0):
    """Gradient of E[r] − β·KL(π‖ref) with respect to the logits."""
    logits = world.logits.clone().requires_grad_()
    logprobs, _ = world.token_logprobs(logits)
    p = logprobs.sum(-1).exp()
    value = (p * world.rewards).sum()
    if beta:
        reference = world.token_logprobs(world.reference)[0]
        value = value - beta * (p * (logprobs.sum(-1) - reference.sum(-1))).sum()
    return torch.autograd.grad(value, logits)[0]


def build(kind, name, **options):
    component = REGISTRY.get(kind, name)
    return component.build(component.options_class()(**options))


def expected(world, estimator, loss="reinforce", mode="seq-mean-token-sum", k=3, beta=0.0,
             behaviour=None, **options):  # fmt: skip
    """Minus the expected gradient of Σ w·ℓ over all groups of ``k`` responses."""
    advantage, policy = build("advantage", estimator, **options), build("loss", loss)
    sampled = world.logits if behaviour is None else behaviour
    chance = world.probabilities(sampled)
    logits = world.logits.clone().requires_grad_()
    logprobs, mask = world.token_logprobs(logits)
    reference, values = world.token_logprobs(world.reference)[0], world.values()
    drawn = world.token_logprobs(sampled)[0].detach()
    total = torch.zeros((), dtype=torch.float64)
    for group in itertools.product(range(len(world.paths)), repeat=k):
        index = torch.tensor(group)
        x = Rows(
            {
                "reward": world.rewards[index],
                "baseline_reward": world.rewards[world.greedy()].expand(k),
                "group": torch.zeros(k, dtype=torch.long),
                "valid": torch.ones(k, dtype=torch.bool),
                "response_len": mask[index].sum(-1),
                "old_logprobs": logprobs[index].detach(),
                "rollout_logprobs": drawn[index],
                "ref_logprobs": reference[index],
                "values": values[index],
            },
            mask[index],
        )
        scalars = {"kl_coef": beta, "kl_kind": "k1"} if beta else {}
        made = advantage(x, LocalReduce(), **scalars)["advantages"]
        x = x.with_columns(advantages=made)
        per_token, _ = policy(ModelOutput(logprobs=logprobs[index]), x)
        weights = torch.from_numpy(row_weights(x.mask.sum(-1).numpy(), mode))
        total = total - chance[index].prod() * (per_token * weights[:, None]).sum()
    return torch.autograd.grad(total, logits)[0]


CHOICES = (
    ("reinforce", {}, 0.0),
    ("rloo", {}, 0.0),
    ("remax", {"clip": None}, 0.0),
    ("dr_grpo", {}, 0.0),
    ("opo", {}, 0.0),
    ("group", {}, 0.0),
    ("reinforce_pp", {}, 0.0),
    ("reinforce_pp_baseline", {}, 0.0),
    ("gae", {"lam": 1.0, "whiten": False}, 0.0),
    ("gae", {"lam": 0.0, "whiten": False}, 0.0),
    ("gae", {"lam": 0.95, "whiten": True}, 0.0),
    ("pass_at_k", {"scale": False}, 0.0),
    ("reinforce", {}, 0.3),
    ("rloo", {}, 0.3),
    ("remax", {"clip": None, "kl": "accumulated"}, 0.3),
    ("remax", {"clip": None, "kl": "one_step"}, 0.3),
)
"""(estimator, its options, β): the rows of the table."""


def row(estimator, options, beta):
    """(factor between the expected and the true gradient, cosine) on the tree, groups of 3."""
    world = tree()
    true = objective(world, beta).flatten()
    found = expected(world, estimator, beta=beta, **options).flatten()
    factor = float((found @ true) / (true @ true))
    cosine = float((found @ true) / (found.norm() * true.norm()))
    return factor, cosine


def table():
    """The table of docs/components/estimators.md."""
    lines = ["| estimator | β | factor | cosine | unbiased |", "|---|---|---|---|---|"]
    for estimator, options, beta in CHOICES:
        factor, cosine = row(estimator, options, beta)
        words = " ".join(f"{k}={v}" for k, v in options.items() if (k, v) != ("clip", None))
        exact = abs(cosine - 1) < 1e-12
        verdict = (
            "yes" if exact and abs(factor - 1) < 1e-9 else "up to the factor" if exact else "no"
        )
        name = f"{estimator} {words}".strip()
        lines.append(f"| {name} | {beta:g} | {factor:.4f} | {cosine:.4f} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
