"""The suite of losses."""

from typing import TYPE_CHECKING, Any

import pytest

from bestiary.batch import Rows
from bestiary.protocols import LossOptions, ModelOutput, Stat
from bestiary.roles.row_weights import row_weights
from bestiary.testing.data import example_rows
from bestiary.testing.suite import Suite
from bestiary.testing.watch import WatchedRows, close, padded, take

if TYPE_CHECKING:
    from torch import Tensor

GIVEN = frozenset({"old_logprobs", "rollout_logprobs", "token_weight"})
"""Columns that an update sends where they are there."""


class LossSuite(Suite):
    """The contract of a loss."""

    kind = "loss"

    def rows(self, seed: int = 0) -> Rows:
        """Rows in pairs with the declared columns; override for columns of one's own."""
        o = self.made_options()
        every = example_rows(seed, groups=(2,) * 4, invalid=False)
        wanted = (o.requires | o.optional | GIVEN) & {*every}
        missing = sorted(o.requires - o.selects - wanted)
        assert not missing, f"add the columns {missing} by overriding rows(seed)"
        x = Rows({n: x for n, x in every.items() if n in wanted}, every.mask)
        return x.with_columns(**self.prepared(x)) if o.selects else x

    def prepared(self, x: Rows) -> "dict[str, Tensor]":
        """The columns that a selecting loss makes of a whole batch."""
        from bestiary.distributed.collectives import LocalReduce

        made = self.build().prepare(x, LocalReduce())
        return {n: v for n, v in made.items() if not isinstance(v, Stat)}

    def outputs(self, x: Rows, seed: int = 0) -> "dict[str, Tensor]":
        """What the model says about the rows."""
        import torch

        made = example_rows(seed, groups=(2,) * 4, invalid=False)
        found = {
            "logprobs": made["now"],
            "entropy": made["now"].abs(),
            "kl": made["now"].abs() / 2,
            "values": made["values"] + 0.1 * made["advantages"],
        }
        width = x.mask.shape[1] - made.mask.shape[1]
        return {
            name: torch.nn.functional.pad(found[name], (0, width), value=-0.5)
            for name in self.made_options().outputs
        }

    def weights(self, x: Rows) -> "Tensor":
        """[B] weights of the whole batch in the loss's own way."""
        import torch

        o = self.made_options()
        mode = getattr(o, "weights", None) or o.default_weights
        return torch.from_numpy(row_weights(x.mask.sum(-1).numpy(), mode, length_norm=5.0))

    def run(
        self, x: Rows, out: "dict[str, Tensor]", weights: "Tensor"
    ) -> "tuple[float, dict[str, Tensor], dict[str, Stat]]":
        """(Σ w·ℓ, its gradients, statistics)."""
        import torch

        leaves = {name: t.clone().requires_grad_() for name, t in out.items()}
        per_token, stats = self.build()(ModelOutput(**leaves), x)
        assert tuple(per_token.shape) == tuple(x.mask.shape), (
            f"the loss has the shape {tuple(per_token.shape)}; wanted {tuple(x.mask.shape)}, one "
            "value a token, without reducing"
        )
        total = (torch.where(x.mask, per_token, 0.0) * weights[:, None]).sum()
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        found = {
            name: torch.zeros_like(leaves[name]) if g is None else g
            for name, g in zip(leaves, grads, strict=True)
        }
        return float(total.detach()), found, dict(stats)

    def test_requirements_can_be_read_without_running_it(self) -> None:
        """Options derive from LossOptions and name outputs that exist."""
        options = self.found().options_class()
        assert issubclass(options, LossOptions)
        assert options.outputs <= {"logprobs", "entropy", "values", "kl"}
        assert options.unit in ("row", "group")

    def test_it_has_a_gradient(self) -> None:
        """Something is learned from it, and nothing of it is NaN."""
        import torch

        x = self.rows()
        _, grads, stats = self.run(x, self.outputs(x), self.weights(x))
        assert any(bool(g.any()) for g in grads.values()), "the gradient is zero everywhere"
        assert all(bool(torch.isfinite(g).all()) for g in grads.values())
        assert all(isinstance(stat, Stat) for stat in stats.values())

    def test_it_reads_what_it_declares(self) -> None:
        """A column that is read without being declared would be missing on a worker."""
        seen: set[str] = set()
        x = self.rows()
        self.build()(ModelOutput(**self.outputs(x)), WatchedRows(x, seen))
        o = self.made_options()
        undeclared = sorted(seen - o.requires - o.optional - GIVEN)
        assert not undeclared, f"reads {undeclared}; declare them in `requires` or `optional`"

    def test_a_selection_is_declared_and_made_of_tokens(self) -> None:
        """``prepare`` gives exactly the columns of ``selects``, one value a token."""
        o = self.made_options()
        x = self.rows()
        made = self.prepared(x) if o.selects else {}
        assert {*made} == o.selects
        assert all(tuple(v.shape) == tuple(x.mask.shape) for v in made.values())

    @pytest.mark.parametrize("seed", [0, 1])
    def test_any_split_into_micro_batches_adds_up(self, seed: int) -> None:
        """Value and gradient of the parts are those of the whole: row i depends on row i only."""
        import torch

        x = self.rows(seed)
        out, weights = self.outputs(x, seed), self.weights(x)
        whole, grads, stats = self.run(x, out, weights)
        total, found = 0.0, {n: torch.zeros_like(g) for n, g in grads.items()}
        added: dict[str, Stat] = {}
        for index in (torch.arange(0, 2), torch.arange(2, 8)):
            part = {n: t[index] for n, t in out.items()}
            value, some, more = self.run(take(x, index), part, weights[index])
            total += value
            for name, g in some.items():
                found[name][index] = g
            added = {n: s + added[n] if n in added else s for n, s in more.items()}
        assert total == pytest.approx(whole, rel=1e-9, abs=1e-12)
        for name, g in grads.items():
            close(found[name], g, f"gradient of {name}")
        for name, stat in stats.items():
            assert added[name].value == pytest.approx(stat.value, rel=1e-9, nan_ok=True), name

    def test_padding_does_not_matter(self) -> None:
        """More padding, and anything where masked, changes nothing."""
        x = self.rows()
        whole, grads, _ = self.run(x, self.outputs(x), self.weights(x))
        wide = padded(x, 2, 7.0)
        again, more, _ = self.run(wide, self.outputs(wide), self.weights(x))
        assert again == pytest.approx(whole, rel=1e-9, abs=1e-12)
        for name, g in grads.items():
            close(more[name][:, : g.shape[1]], g, f"gradient of {name}")
            assert not more[name][~wide.mask].any(), "masked tokens have a gradient"

    def test_it_gives_the_same_twice(self) -> None:
        """No hidden randomness, no state."""
        x = self.rows()
        out: Any = self.outputs(x)
        assert self.run(x, out, self.weights(x))[0] == self.run(x, out, self.weights(x))[0]
