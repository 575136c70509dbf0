"""The Lagrange multiplier with its window of costs: the state of Safe RLHF."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from bestiary.ops.lagrange import lagrange_step
from bestiary_safe_rlhf.options import SafeRLHFOptions


class Multiplier:
    """λ in log space: ln λ ← min(ln λ + α·λ·(J_C − d), ln λ_max), once a step.

    J_C is the mean of the last ``window`` raw costs of the run, kept on the controller, so that
    λ is the same for all ranks and does not depend on how a batch is split. (The authors' later
    port steps at every micro-batch with a window for each rank.)

    Args:
        options: of the algorithm.
    """

    def __init__(self, options: SafeRLHFOptions) -> None:
        self.options = options
        self.value = options.lambda_init
        self.costs: deque[float] = deque(maxlen=options.window)

    def step(self, costs: Iterable[float], step: int) -> dict[str, float]:
        """Take in the raw costs of a rollout and move λ; before the actor's update.

        Returns:
            ``lagrange/lambda`` (the new one), ``lagrange/cost`` (J_C) and ``lagrange/violation``
            (J_C − d); without any cost so far λ stays as it is.
        """
        o = self.options
        self.costs.extend(float(cost) for cost in costs)
        if not self.costs:
            return {"lagrange/lambda": self.value}
        mean = sum(self.costs) / len(self.costs)
        if step > o.lambda_warmup:
            self.value = float(
                lagrange_step(
                    self.value, mean, threshold=o.threshold, lr=o.lambda_lr, lam_max=o.lambda_max
                )
            )
        return {
            "lagrange/lambda": self.value,
            "lagrange/cost": mean,
            "lagrange/violation": mean - o.threshold,
        }

    def state_dict(self) -> dict[str, Any]:
        """λ and the window."""
        return {"value": self.value, "costs": list(self.costs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.value = float(state["value"])
        self.costs = deque((float(c) for c in state["costs"]), maxlen=self.options.window)
