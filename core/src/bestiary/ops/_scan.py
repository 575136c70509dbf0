"""Recurrences over the tokens of a row, without a Python loop over tokens."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def reverse_scan(decay_BT: Tensor, x_BT: Tensor) -> Tensor:
    """Solve y_t = x_t + decay_t · y_{t+1} with y = 0 after the last column.

    Recursive doubling: log2(T) steps, each on whole [B, T] tensors. A column with decay 1 and x 0
    carries y over unchanged, so a row's result does not depend on how far it is padded.
    """
    width, span = x_BT.shape[-1], 1
    while span < width:
        x_BT = x_BT + decay_BT * pad(x_BT[:, span:], (0, span))
        decay_BT = decay_BT * pad(decay_BT[:, span:], (0, span))
        span *= 2
    return x_BT


def next_live(x_BT: Tensor, mask_BT: Tensor, last_B: Tensor) -> Tensor:
    """Value at the next unmasked position after t; ``last_B`` where there is none."""
    width = x_BT.shape[-1]
    positions = torch.arange(width, device=x_BT.device).expand_as(mask_BT)
    here_or_later = torch.where(mask_BT, positions, width).flip(-1).cummin(-1).values.flip(-1)
    later = torch.cat([here_or_later, torch.full_like(here_or_later[:, :1], width)], -1)[:, 1:]
    return torch.cat([x_BT, last_B.unsqueeze(-1)], -1).gather(-1, later)
