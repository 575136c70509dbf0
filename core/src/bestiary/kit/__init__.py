"""Parts that several algorithms and estimators are put together from.

Light: torch is imported when a part computes.
"""

from bestiary.kit.kl import KLControl, KLKind, KLPenalty, kl_term
from bestiary.kit.rewards import shaped_rewards

__all__ = ["KLControl", "KLKind", "KLPenalty", "kl_term", "shaped_rewards"]
