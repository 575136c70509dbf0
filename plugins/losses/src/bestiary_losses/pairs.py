"""Losses of preference pairs: two rows of a group, one of them preferred.

Both rows carry the loss of their pair on their last token, so that seq-mean-token-sum weights,
1/(2·pairs) for each row, make the mean over pairs. A row without a partner has no loss.
"""

# Shape suffixes: B = rows of the micro-batch, T = response tokens (padded on the right).

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from bestiary.batch import Rows
from bestiary.protocols import Configured, ModelOutput, Stat
from bestiary_losses.options import BradleyTerryOptions, DPOOptions

Loss = tuple[Tensor, Mapping[str, Stat]]


def partners(group_B: Tensor) -> tuple[Tensor, Tensor]:
    """([B] the other row of each row's group, [B] whether there is exactly one)."""
    same_BB = (group_B[:, None] == group_B[None, :]) & ~torch.eye(
        len(group_B), dtype=torch.bool, device=group_B.device
    )
    return same_BB.int().argmax(-1), same_BB.sum(-1) == 1


def last_token(mask_BT: Tensor) -> Tensor:
    """[B, T] True on the last unmasked token of each row."""
    return mask_BT & (mask_BT.flip(-1).cumsum(-1).flip(-1) == 1)


def scores(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B] the value before each row's last token: the state that has read the whole text."""
    return values_BT.masked_fill(~last_token(mask_BT), 0).sum(-1)


def on_last(loss_B: Tensor, paired_B: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] each row's number on its last token, 0 for rows without a partner."""
    where_BT = last_token(mask_BT) & paired_B[:, None]
    return torch.where(where_BT, loss_B[:, None], torch.zeros_like(loss_B)[:, None])


def pair_stats(margin_B: Tensor, x: Rows, paired_B: Tensor) -> dict[str, Stat]:
    """``preference/accuracy`` (ties count half) and ``preference/margin``, once for each pair."""
    first_B = paired_B & (x["preferred"] > 0)
    margin = margin_B.detach().double()[first_B]
    right = (margin > 0).double() + 0.5 * (margin == 0).double()
    return {
        "preference/accuracy": Stat(float(right.sum()), len(margin)),
        "preference/margin": Stat(float(margin.sum()), len(margin)),
    }


class BradleyTerry(Configured):
    """−log σ(s⁺ − s⁻) for each pair, s the value of the state that has read the response."""

    options: BradleyTerryOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """[b, T] with each pair's loss on the last token of both rows."""
        score_B = scores(now.need("values"), x.mask)
        partner_B, paired_B = partners(x["group"])
        sign_B = torch.where(x["preferred"] > 0, 1.0, -1.0)
        margin_B = sign_B * (score_B - score_B[partner_B])
        loss_B = -F.logsigmoid(margin_B)
        if self.options.center:
            loss_B = loss_B + self.options.center * (score_B + score_B[partner_B]).square()
        return on_last(loss_B, paired_B, x.mask), pair_stats(margin_B, x, paired_B)


class CostPreference(Configured):
    """−log σ(C⁻ − C⁺) − log σ(u⁺C⁺) − log σ(u⁻C⁻), u = +1 where unsafe and −1 where safe.

    C is the cost of a response: higher for the one that was not preferred, above 0 for unsafe
    responses. Source: Dai et al. 2023, arXiv:2310.12773, eq. 8.
    """

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """[b, T] with the losses on the last tokens."""
        cost_B = scores(now.need("values"), x.mask)
        partner_B, paired_B = partners(x["group"])
        sign_B = torch.where(x["preferred"] > 0, 1.0, -1.0)
        margin_B = sign_B * (cost_B[partner_B] - cost_B)
        label_B = x["unsafe"].to(cost_B.dtype)
        # The order belongs to both rows, each label to one: it counts twice there.
        loss_B = -F.logsigmoid(margin_B) - 2.0 * F.logsigmoid(label_B * cost_B)
        right_B = ((cost_B * label_B) > 0).double()[paired_B]
        stats = pair_stats(margin_B, x, paired_B)
        stats["preference/safety"] = Stat(float(right_B.sum()), len(right_B))
        return on_last(loss_B, paired_B, x.mask), stats


class DPO(Configured):
    """−log σ(β·(h⁺ − h⁻)), h = log π(y) − log π_ref(y) of whole responses."""

    options: DPOOptions

    def __call__(self, now: ModelOutput, x: Rows) -> Loss:
        """[b, T] with each pair's loss on the last token of both rows."""
        o = self.options
        gap_BT = now.need("logprobs") - x["ref_logprobs"]
        ratio_B = gap_BT.masked_fill(~x.mask, 0).sum(-1)
        if o.variant == "ipo":
            ratio_B = ratio_B / x.mask.sum(-1).clamp(min=1)
        partner_B, paired_B = partners(x["group"])
        sign_B = torch.where(x["preferred"] > 0, 1.0, -1.0)
        margin_B = sign_B * (ratio_B - ratio_B[partner_B])
        if o.variant == "ipo":
            loss_B = (margin_B - 1.0 / (2.0 * o.beta)).square()
        else:
            right_B, wrong_B = F.logsigmoid(o.beta * margin_B), F.logsigmoid(-o.beta * margin_B)
            loss_B = -(1.0 - o.label_smoothing) * right_B - o.label_smoothing * wrong_B
        return on_last(loss_B, paired_B, x.mask), pair_stats(o.beta * margin_B, x, paired_B)
