"""Suites of advantage estimators and corrections."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from bestiary.batch import Rows
from bestiary.distributed.collectives import LocalReduce
from bestiary.protocols import AdvantageOptions, CorrectionOptions, Stat
from bestiary.testing.data import example_rows
from bestiary.testing.shards import on_shards
from bestiary.testing.suite import Suite
from bestiary.testing.watch import WatchedRows, close, padded, take, tensors

if TYPE_CHECKING:
    from torch import Tensor

ALWAYS = frozenset({"group", "valid", "response_len"})
"""Columns that every estimator and correction is given."""


class _Columns(Suite):
    """Functions that make columns of rows."""

    scope: ClassVar[str] = "row"
    scalars: ClassVar[Mapping[str, Any]] = {}
    """What the algorithm passes when it calls the estimator."""

    def rows(self, seed: int = 0) -> Rows:
        """Rows with the declared columns only; override for columns of one's own."""
        o = self.made_options()
        every = example_rows(seed)
        wanted = (o.requires | o.optional | ALWAYS) & ({*every} | {*every.text})
        missing = sorted(o.requires - wanted)
        assert not missing, f"add the columns {missing} by overriding rows(seed)"
        columns = {name: x for name, x in every.items() if name in wanted}
        if self.kind == "advantage" and self.made_options().scope == "sample":
            import torch

            flat = {name: x for name, x in columns.items() if x.dim() == 1}
            return Rows(flat, torch.ones(every.size, 1, dtype=torch.bool), every.text)
        return Rows(columns, every.mask, every.text)

    def call(self, x: Rows, reduce: Any = None) -> Mapping[str, "Tensor | Stat"]:  # noqa: ANN401
        """One call of a new component."""
        made: Mapping[str, Tensor | Stat] = self.build()(x, reduce or LocalReduce(), **self.scalars)
        return made

    def whole(self, made: Mapping[str, "Tensor | Stat"], x: Rows) -> dict[str, "Tensor"]:
        """The columns, [B] broadcast over the response."""
        out = {}
        for name, column in tensors(made).items():
            assert tuple(column.shape) in ((x.size,), tuple(x.mask.shape)), (
                f"{name!r} has the shape {tuple(column.shape)}; wanted [{x.size}] or "
                f"{list(x.mask.shape)}"
            )
            wide = column if column.dim() == 2 else column[:, None].expand(x.mask.shape)
            out[name] = wide.masked_fill(~x.mask, 0)
        return out

    def test_it_makes_what_it_declares(self) -> None:
        """Declared columns, of the right shapes, finite, in at least float32."""
        import torch

        x = self.rows()
        made = self.call(x)
        assert set(tensors(made)) == set(self.made_options().provides)
        for name, column in self.whole(made, x).items():
            assert column.is_floating_point(), f"{name} is {column.dtype}"
            assert torch.isfinite(column).all(), f"{name} is not finite"
        assert all(isinstance(stat, Stat) for n, stat in made.items() if "/" in n)

    def test_it_reads_what_it_declares(self) -> None:
        """A column that is read without being declared would be missing on a worker."""
        seen: set[str] = set()
        self.call(WatchedRows(self.rows(), seen))
        o = self.made_options()
        undeclared = sorted(seen - o.requires - o.optional - ALWAYS)
        assert not undeclared, f"reads {undeclared}; declare them in `requires` or `optional`"

    def test_the_rows_are_left_as_they_were(self) -> None:
        """Inputs are shared between calls."""
        x = self.rows()
        before = {name: column.clone() for name, column in x.items()}
        self.call(x)
        for name, column in before.items():
            assert (x[name] == column).all(), f"{name} was changed in place"

    def test_it_gives_the_same_twice(self) -> None:
        """No hidden randomness, no state."""
        x = self.rows()
        first, second = self.call(x), self.call(x)
        for name, column in tensors(first).items():
            close(column, tensors(second)[name], name)

    def test_padding_and_masked_values_do_not_matter(self) -> None:
        """NaN where masked stays there; more padding changes nothing."""
        x = self.rows()
        if x.mask.shape[1] == 1:
            return  # one number a sample
        wide = padded(x, 3, float("nan"))
        plain, made = self.whole(self.call(x), x), self.whole(self.call(wide), wide)
        for name, column in plain.items():
            close(made[name][:, : column.shape[1]], column, name)

    def test_the_order_of_rows_does_not_matter(self) -> None:
        """Rows come from several workers in any order."""
        import torch

        x = self.rows()
        order = torch.randperm(x.size, generator=torch.Generator().manual_seed(1))
        plain, made = self.call(x), self.call(take(x, order))
        for name, column in tensors(plain).items():
            close(tensors(made)[name], column[order], name)

    def test_the_split_over_ranks_does_not_matter(self) -> None:
        """Statistics over the batch go through ``reduce``, sum or max, and nothing else."""
        import torch

        scope = getattr(self.made_options(), "scope", "row")
        if scope == "sample":
            return  # it sees all rows at once
        x = self.rows()
        unit = x["group"] if scope == "group" else torch.arange(x.size)
        shards = [torch.nonzero(unit % 2 == rank)[:, 0] for rank in range(2)]
        split = on_shards(lambda rows, reduce: self.call(rows, reduce), x, shards)
        plain = self.call(x)
        for name, column in tensors(plain).items():
            close(split[name], column, name)
        for name, stat in plain.items():
            if isinstance(stat, Stat):
                assert split[name].value == pytest.approx(stat.value, nan_ok=True), name

    def test_a_rank_without_rows_takes_part(self) -> None:
        """A worker may have no rows; it still joins every reduction."""
        import torch

        if getattr(self.made_options(), "scope", "row") == "sample":
            return
        x = self.rows()
        shards = [torch.arange(x.size), torch.arange(0)]
        split = on_shards(lambda rows, reduce: self.call(rows, reduce), x, shards)
        for name, column in tensors(self.call(x)).items():
            close(split[name], column, name)

    def test_invalid_rows_are_harmless(self) -> None:
        """A batch of nothing but invalid samples has finite results."""
        import torch

        x = self.rows()
        none = x.with_columns(valid=torch.zeros(x.size, dtype=torch.bool))
        for name, column in self.whole(self.call(none), x).items():
            assert torch.isfinite(column).all(), name


class EstimatorSuite(_Columns):
    """The contract of an advantage estimator."""

    kind = "advantage"

    def test_requirements_can_be_read_without_running_it(self) -> None:
        """Options derive from AdvantageOptions and name a scope that exists."""
        options = self.found().options_class()
        assert issubclass(options, AdvantageOptions)
        assert options.scope in ("sample", "row", "group")

    def test_invalid_samples_have_no_advantage(self) -> None:
        """A sample without a reward gets exactly 0."""
        x = self.rows()
        for name, column in self.whole(self.call(x), x).items():
            if name == "advantages":
                assert not column[~x["valid"].bool()].any(), "an invalid sample has an advantage"


class CorrectionSuite(_Columns):
    """The contract of a correction."""

    kind = "correction"

    def test_requirements_can_be_read_without_running_it(self) -> None:
        """Options derive from CorrectionOptions and promise ``token_weight``."""
        options = self.found().options_class()
        assert issubclass(options, CorrectionOptions)
        assert "token_weight" in options.provides

    def test_weights_are_not_negative(self) -> None:
        """A weight never turns a gradient around."""
        x = self.rows()
        assert (self.whole(self.call(x), x)["token_weight"] >= 0).all()


Call = Callable[[Rows, Any], Mapping[str, Any]]
Shards = Sequence["Tensor"]
