"""FSDPEngine: owns a module, its optimizer and its layout on one rank."""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bestiary.batch import Ragged, RowBlock
from bestiary.engines.engine_api import ModelSpec, Ranks, Residency, UpdatePart
from bestiary.engines.fsdp.build import build_net
from bestiary.engines.fsdp.forward import Against, Plan, pad
from bestiary.engines.fsdp.layout import Layout, Replicated, buckets
from bestiary.engines.fsdp.lora import adapter_tensors, adapters_off, merged
from bestiary.engines.fsdp.objective import (
    Resolve,
    TermTotals,
    outputs_of,
    plugin_resolver,
    rows_on,
    term_gradients,
)
from bestiary.engines.fsdp.optimizer import AdamW, clip
from bestiary.engines.fsdp.options import FSDPOptions
from bestiary.engines.fsdp.packing import check_rows, pack
from bestiary.engines.fsdp.state import Counters, load_state, save_state
from bestiary.errors import DataError, EngineError, NumericalError
from bestiary.models.loading import decoder_layers
from bestiary.models.saving import save_adapter
from bestiary.protocols import Stat

_log = logging.getLogger(__name__)

BUCKET_BYTES = 64 << 20
"""Size of an exported bucket."""


class FSDPEngine:
    """The training engine; implements :class:`bestiary.engines.engine_api.TrainEngine`.

    ``torch.distributed`` is initialised by the caller when there are several ranks. Dropout is
    off: log-probabilities must be those of the policy that sampled.

    Args:
        options: how to train.
        spec: the model.
        ranks: the place of this process.
        resolve_loss: makes the loss that a reference names; the plugin manager's by default.
    """

    def __init__(
        self,
        options: FSDPOptions,
        spec: ModelSpec,
        ranks: Ranks,
        resolve_loss: Resolve | None = None,
    ) -> None:
        if spec.lr is not None:
            options = replace(options, lr=spec.lr)
        self.options, self.spec, self.ranks = options, spec, ranks
        self.resolve_loss: Resolve = resolve_loss or plugin_resolver()
        self.reference: FSDPEngine | None = None
        """The model that a loss's ``kl`` is taken to; None under LoRA is its own base."""
        self.device = torch.device(ranks.device)
        dtype = torch.bfloat16 if spec.dtype == "bf16" else torch.float32
        built = build_net(options, spec, self.device)
        self.net, self.packed, self.lora = built.net, built.packed, built.adapter
        self.parameter_count = sum(p.numel() for p in self.net.parameters())
        """Parameters of the whole model, tied ones once."""
        positions = getattr(self.net.lm.config, "max_position_embeddings", None)
        self.max_length: int | None = positions
        """Tokens of the longest row; None if the model sets no limit."""
        self.layout: Layout
        self.sharded = options.shard == "full" and ranks.world > 1
        if self.sharded:
            from bestiary.engines.fsdp.sharded import Sharded

            self.layout = Sharded(
                self.net,
                decoder_layers(self.net.lm),
                dtype,
                trainable=spec.trainable,
                world=ranks.world,
                device_type=self.device.type,
                partial=self.lora is not None,
            )
        else:
            self.layout = Replicated(
                self.net,
                dtype,
                trainable=spec.trainable,
                world=ranks.world,
                partial=self.lora is not None,
            )
        self.optimizer = AdamW(self.layout.weights, options) if spec.trainable else None
        self.version = 0
        """Optimizer steps since the base weights; skipped ones do not count."""
        self.skipped = 0
        self.skipped_in_row = 0

    # ------------------------------------------------------------------ forward

    @torch.no_grad()
    def forward(
        self,
        rows: RowBlock,
        micro: Sequence[Sequence[int]],
        outputs: Collection[str],
        temperature: float = 1.0,
        adapter: Literal["on", "off"] = "on",
    ) -> Mapping[str, Ragged]:
        """Fields of ``ModelOutput`` without gradient, a ragged column each, in row order.

        ``values_after`` is the value after the last response token: one entry for each row.
        ``adapter="off"`` runs the base of a LoRA model.
        """
        if adapter == "off" and self.lora is not None:
            with adapters_off(self.net):
                return self.forward(rows, micro, outputs, temperature)
        names = {"values" if name == "values_after" else name for name in outputs}
        self._check(rows, names)
        if "values_after" in outputs:
            return self._with_after(rows, micro, outputs, temperature)
        return self._run(rows, micro, outputs, temperature)

    def _run(
        self,
        rows: RowBlock,
        micro: Sequence[Sequence[int]],
        outputs: Collection[str],
        temperature: float,
    ) -> dict[str, Ragged]:
        lengths = rows.tokens["response_ids"].lengths
        starts = rows.tokens["response_ids"].offsets[:-1]
        found = {name: np.zeros(int(lengths.sum()), dtype=np.float32) for name in outputs}
        seen = np.zeros(len(rows), dtype=bool)
        for index in micro:
            plan = self._plan(rows, index)
            flat = self.net(plan, frozenset(outputs), temperature)
            chosen = np.asarray(index, dtype=np.int64)
            seen[chosen] = True
            row, column = np.divmod(plan.place.cpu().numpy(), max(plan.shape[1], 1))
            at = starts[chosen][row] + column
            for name in outputs:
                found[name][at] = flat[name].float().cpu().numpy()
        if not seen.all():
            raise EngineError(f"forward: {int((~seen).sum())} rows are in no micro-batch")
        return {name: Ragged.from_lengths(values, lengths) for name, values in found.items()}

    def _with_after(
        self,
        rows: RowBlock,
        micro: Sequence[Sequence[int]],
        outputs: Collection[str],
        temperature: float,
    ) -> dict[str, Ragged]:
        """Run rows with one token more, whose predictor is the last token of the response.

        What that token is does not matter: it is predicted, never read.
        """
        responses = rows.tokens["response_ids"]
        longer = Ragged.from_rows(
            [np.append(responses.row(i), 0) for i in range(len(rows))], dtype=np.int64
        )
        wider = RowBlock({"prompt_ids": rows.tokens["prompt_ids"], "response_ids": longer})
        wanted = [name for name in outputs if name != "values_after"]
        made = self._run(wider, micro, {*wanted, "values"}, temperature)
        last = np.zeros(len(longer.values), dtype=bool)
        last[longer.offsets[1:] - 1] = True
        found = {
            name: Ragged.from_lengths(made[name].values[~last], responses.lengths)
            for name in wanted
        }
        ones = np.ones(len(rows), dtype=np.int64)
        found["values_after"] = Ragged.from_lengths(made["values"].values[last], ones)
        return found

    # ------------------------------------------------------------------ update

    def update(self, parts: Sequence[UpdatePart]) -> Mapping[str, Stat]:
        """One optimizer step on the summed gradients of all parts and ranks.

        Raises:
            NumericalError: after ``max_skipped`` + 1 steps in a row without a finite gradient.
        """
        if self.optimizer is None:
            raise EngineError(
                f"update of the frozen model {self.spec.path}", hint="build it with trainable=True"
            )
        times = {"forward": 0.0, "backward": 0.0}
        totals = TermTotals({}, {})
        self.layout.zero()
        tokens = 0
        for part in parts:
            tokens += self._accumulate(part, totals, times)
        start = perf_counter()
        self.layout.reduce()
        norm = math.sqrt(float(self.layout.squared_norm()))
        times["reduce"] = perf_counter() - start
        start = perf_counter()
        lr = self.options.lr_at(self.version + 1)
        fine = math.isfinite(norm)
        if fine:
            clip(self.layout.grads, norm, self.options.clip_norm)
            self.optimizer.to(self.device)
            self.optimizer.step(self.layout.grads, lr)
            self.layout.publish()
            self.version += 1
            self.skipped_in_row = 0
        else:
            self._skip(norm)
        times["optimizer"] = perf_counter() - start
        return self._stats(totals, times, tokens, norm, lr, fine)

    def _accumulate(self, part: UpdatePart, totals: TermTotals, times: dict[str, float]) -> int:
        """Run the micro-batches of one part; returns the tokens of its real rows."""
        losses = [self.resolve_loss(term.loss) for term in part.terms]
        outputs = outputs_of(losses)
        self._check(part.rows, outputs)
        tokens = 0
        for number, index in enumerate(part.micro):
            dummy = number in part.dummy
            if dummy and self.layout.skips_dummies:
                continue
            start = perf_counter()
            plan = self._plan(part.rows, index)
            flat = self.net(plan, outputs, part.temperature, self._against(plan, outputs))
            if dummy:
                grads = {name: torch.zeros_like(x) for name, x in flat.items()}
            else:
                chosen = np.asarray(index, dtype=np.int64)
                block = part.rows.take(chosen)
                rows = rows_on(block, self.device)
                grads = term_gradients(flat, plan, rows, chosen, part.terms, losses, totals)
                tokens += sum(int(block.tokens[n].lengths.sum()) for n in _TOKENS)
            middle = perf_counter()
            self._backward(flat, grads)
            self.layout.after_backward()
            times["forward"] += middle - start
            times["backward"] += perf_counter() - middle
        return tokens

    def _against(self, plan: Plan, outputs: Collection[str]) -> Against | None:
        """The reference's answer to a plan, where a loss takes a KL to it."""
        if "kl" not in outputs:
            return None
        if self.reference is not None:
            return self.reference.net.as_reference(plan)
        with adapters_off(self.net):
            made = self.net.as_reference(plan)

        def head(states: Tensor) -> Tensor:
            with adapters_off(self.net):
                return made.head(states)

        return Against(made.states, head)

    @staticmethod
    def _backward(flat: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> None:
        names = list(flat)
        torch.autograd.backward([flat[n] for n in names], [grads[n] for n in names])

    def _skip(self, norm: float) -> None:
        self.skipped += 1
        self.skipped_in_row += 1
        _log.warning(
            "step after version %d skipped: gradient norm is %s (%d in a row)",
            self.version,
            norm,
            self.skipped_in_row,
        )
        if self.skipped_in_row > self.options.max_skipped:
            raise NumericalError(
                f"gradient norm {norm} in {self.skipped_in_row} steps in a row after version "
                f"{self.version} of {self.spec.path}",
                hint="lower lr, look at the rewards and advantages of the last step, or raise "
                "train_engine.max_skipped",
            )

    def _stats(
        self,
        totals: TermTotals,
        times: Mapping[str, float],
        tokens: int,
        norm: float,
        lr: float,
        fine: bool,
    ) -> dict[str, Stat]:
        """Statistics that add up over the ranks: what all ranks know is counted once."""
        once = 1.0 if self.ranks.rank == 0 else 0.0
        stats = dict(totals.stats)
        for name, value in totals.values.items():
            stats[name] = Stat(value, once)
        stats["grad_norm"] = Stat(norm, how="max")
        stats["lr"] = Stat(lr * once, once)
        stats["update/tokens"] = Stat(float(tokens), how="sum")
        stats["update/skipped"] = Stat(once * (not fine), how="sum")
        for name, seconds in times.items():
            stats[f"update/{name}_s"] = Stat(seconds)
        return stats

    # ------------------------------------------------------------------ shared

    def _plan(self, rows: RowBlock, index: Sequence[int]) -> Plan:
        chosen = np.asarray(index, dtype=np.int64)
        prompts = rows.tokens["prompt_ids"].take(chosen)
        responses = rows.tokens["response_ids"].take(chosen)
        if self.packed:
            keep = not self.options.activation_checkpointing
            return pack(prompts, responses, self.device, keep=keep)
        return pad(prompts, responses, self.device)

    def _check(self, rows: RowBlock, outputs: Collection[str]) -> None:
        heads = self.spec.head.split("+")
        has = {"logprobs", "entropy", "probs_squared"} if "lm" in heads else set()
        has |= {"values"} if "value" in heads else set()
        if "kl" in outputs and "lm" in heads:
            if self.reference is None and self.lora is None:
                raise EngineError(
                    f"a loss takes the KL of {self.spec.path} to a reference over the whole "
                    "vocabulary, and no reference is in this process",
                    hint="the roles actor and reference must share a pool (placement=colocate), "
                    "or train with LoRA; any other kl.kind needs log-probabilities only",
                )
            has |= {"kl"}
        unknown = set(outputs) - has
        if unknown or not outputs:
            raise EngineError(
                f"outputs {sorted(unknown or outputs)} of a model with head={self.spec.head!r}; "
                f"it has {sorted(has)}",
                hint="a loss on values belongs to a critic, one on log-probabilities to an actor",
            )
        check_rows(rows)
        lengths = rows.tokens["prompt_ids"].lengths + rows.tokens["response_ids"].lengths
        longest = int(lengths.max(initial=0))
        if self.max_length is not None and longest > self.max_length:
            raise DataError(
                f"a row of {longest} tokens is longer than the {self.max_length} positions of "
                f"{self.spec.path}",
                hint="lower max_tokens or filter long prompts",
            )

    # ------------------------------------------------------------------ residency

    def residency(self, want: Residency) -> Mapping[str, Any]:
        """Free gradients, and move the optimizer's moments between device and host.

        Freed gradients come back with the next update, which also brings the moments back. On a
        CPU the host is the device, so nothing moves.

        Returns:
            ``freed_bytes`` and ``moved_bytes``.

        Raises:
            EngineError: for weights elsewhere than on the device: they are the masters.
        """
        if want.weights != "device":
            raise EngineError(
                f"the weights of {self.spec.path} are the masters and stay on the device; "
                f"{want.weights!r} was asked for"
            )
        freed = self.layout.free_gradients() if want.gradients != "device" else 0
        moved = 0
        if self.optimizer is not None:
            at = self.device if want.optimizer == "device" else torch.device("cpu")
            moved = self.optimizer.to(at)
        return {"freed_bytes": freed, "moved_bytes": moved}

    # ------------------------------------------------------------------ weights and state

    @torch.no_grad()
    def export(self, dtype: str = "") -> Iterator[Mapping[str, Tensor]]:
        """Whole parameters under their checkpoint names, bucket by bucket, the same on each rank.

        Args:
            dtype: ``fp32`` (masters, the default) or ``bf16``. Replicated float32 weights are
                handed out without a copy.
        """
        to = {"": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}.get(dtype)
        if to is None:
            raise EngineError(f"export in dtype {dtype!r}; 'fp32' or 'bf16' is wanted")
        parameters = self.layout.whole()
        if self.lora is not None:
            parameters = merged(parameters, self.lora)
        whole = ((name, tensor.detach().to(to)) for name, tensor in parameters)
        yield from buckets(whole, BUCKET_BYTES)

    def export_adapter(self, folder: Path) -> None:
        """Write the adapter in peft's own format (rank 0 writes, all take part).

        Raises:
            EngineError: for a model without LoRA.
        """
        if self.lora is None:
            raise EngineError(f"{self.spec.path} is trained without LoRA; it has no adapter")
        tensors = adapter_tensors(self.layout.whole(trained=True))
        if self.ranks.rank == 0:
            save_adapter(folder, tensors, self.lora.config)

    def save(self, folder: Path) -> None:
        """This rank's share of weights, optimizer and counters, as safetensors and JSON.

        Under LoRA what is trained only, and the checksum of the base that it belongs to.
        """
        save_state(
            Path(folder),
            self.layout.pieces(),
            self.optimizer,
            Counters(self.version, self.skipped, self.skipped_in_row),
            self.ranks.rank,
            self.ranks.world,
            replicated=not self.sharded,
            adapter=self.lora.identity() if self.lora is not None else None,
        )

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Restore a saved state; world size and sharding may differ.

        Raises:
            CheckpointError: if it is incomplete or belongs to another model or adapter.
        """
        adapter = self.lora.identity() if self.lora is not None else None
        counters = load_state(Path(folder), self.layout.pieces(), self.optimizer, adapter)
        self.version, self.skipped = counters.version, counters.skipped
        self.skipped_in_row = counters.skipped_in_row
        self.layout.publish()


_TOKENS = ("prompt_ids", "response_ids")
