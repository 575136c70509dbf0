"""Gradients of weighted terms with respect to what the model said, against autograd alone."""

import math

import numpy as np
import pytest
import torch

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.engine_api import TermJob
from bestiary.engines.fsdp.forward import pad
from bestiary.engines.fsdp.objective import TermTotals, rows_on, term_gradients
from bestiary.protocols import ComponentRef, LossOptions, ModelOutput


class Corrected(LossOptions):
    corrected = True


class Token:
    """exp of each log-probability: row and token separable."""

    def __init__(self, options):
        self.options = options

    def __call__(self, now, x):
        return now.logprobs.exp(), {}


class Sequence(Token):
    """The ratio of a whole row on each of its tokens, as in GSPO."""

    def __call__(self, now, x):
        mean = (now.logprobs * x.mask).sum(1) / x.mask.sum(1).clamp(min=1)
        return mean.exp()[:, None].expand_as(now.logprobs), {}


class Pair(Token):
    """Row i of a pair reads row i ± 1, as losses of unit ``group`` may."""

    def __call__(self, now, x):
        mine = (now.logprobs * x.mask).sum(1)
        partner = mine[torch.arange(x.size) ^ 1]
        return (mine - partner).square()[:, None].expand_as(now.logprobs), {}


def gradients(loss, row_weights, token_weight):
    """(what the engine sends into the model, what autograd alone makes of the same sum)."""
    lengths = np.array([5, 3, 4, 2])
    rng = np.random.default_rng(0)
    mask = [np.ones(n, dtype=bool) for n in lengths]
    mask[2][1] = False
    prompts = Ragged.from_rows([[1, 2]] * 4, np.int64)
    responses = Ragged.from_rows([rng.integers(3, 9, n) for n in lengths], np.int64)
    tokens = {"prompt_ids": prompts, "response_ids": responses}
    tokens["response_mask"] = Ragged.from_rows(mask, bool)
    tokens["token_weight"] = Ragged.from_rows([token_weight[:n] for n in lengths], np.float32)
    rows = rows_on(RowBlock(tokens), "cpu")
    plan = pad(prompts, responses)
    said = -torch.from_numpy(rng.uniform(0.1, 2.0, int(lengths.sum())))
    leaf = torch.zeros(plan.shape, dtype=torch.float64).view(-1).index_put((plan.place,), said)
    leaf = leaf.view(plan.shape).requires_grad_()
    per_token, _ = loss(ModelOutput(logprobs=leaf), rows)
    weights = torch.tensor(row_weights, dtype=torch.float64)[:, None] * rows.mask
    if loss.options.corrected:
        weights = weights * rows["token_weight"]
    (per_token * weights).sum().backward()
    job = TermJob(ComponentRef("loss", "it"), np.asarray(row_weights))
    totals = TermTotals({}, {})
    made = term_gradients({"logprobs": said}, plan, rows, np.arange(4), [job], [loss], totals)
    wanted = leaf.grad.flatten()[plan.place]
    assert totals.values["loss/it"] == pytest.approx(float((per_token * weights).sum().detach()))
    return made["logprobs"].numpy(), wanted.numpy()


@pytest.mark.parametrize("kind", [Token, Sequence, Pair])
@pytest.mark.parametrize("options", [LossOptions(), Corrected()])
def test_the_gradient_is_that_of_the_weighted_sum(kind, options):
    """Also where tokens of weight 0, or rows of weight 0, are read by others' losses."""
    found, wanted = gradients(kind(options), [0.5, 1.0, 0.0, 2.0], [1.5, 0.0, 0.7, 0.0, 1.0])
    assert found == pytest.approx(wanted, rel=1e-12)
    assert np.abs(found).max() > 0


def test_only_corrected_losses_are_multiplied_by_the_token_weight():
    ones, weights = [1.0] * 4, [2.0] * 5
    plain, _ = gradients(Token(LossOptions()), ones, weights)
    corrected, _ = gradients(Token(Corrected()), ones, weights)
    assert corrected == pytest.approx(2 * plain)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_tokens_of_weight_zero_add_nothing_even_where_the_loss_is_not_finite(bad):
    weights = np.array([1.0, 0.0, 1.0, 1.0, 0.0])

    class Broken(Token):
        def __call__(self, now, x):
            scale = torch.where(x["token_weight"] == 0, bad, 1.0)
            return now.logprobs.exp() * scale, {}

    lengths = np.array([5, 3])
    tokens = {
        "prompt_ids": Ragged.from_rows([[1]] * 2, np.int64),
        "response_ids": Ragged.from_rows([[3] * n for n in lengths], np.int64),
        "token_weight": Ragged.from_rows([weights[:n] for n in lengths], np.float32),
    }
    rows = rows_on(RowBlock(tokens), "cpu")
    plan = pad(tokens["prompt_ids"], tokens["response_ids"])
    said = torch.full((8,), -0.5)
    job = TermJob(ComponentRef("loss", "it"), np.ones(2))
    found = {}
    for loss in (Broken(Corrected()), Token(Corrected())):
        totals = TermTotals({}, {})
        made = term_gradients({"logprobs": said}, plan, rows, np.arange(2), [job], [loss], totals)
        found[type(loss)] = made["logprobs"].numpy(), totals.values["loss/it"]
    assert found[Broken][0].tolist() == found[Token][0].tolist()
    assert found[Broken][1] == found[Token][1]
    assert found[Broken][0][[1, 4, 6]].tolist() == [0.0] * 3
