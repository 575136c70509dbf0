"""Runs TRL's own loss on recorded inputs: ``peer_trl.py IN.safetensors OUT.safetensors``.

``GRPOTrainer._compute_loss`` is called as it is, on a stand-in that has the trainer's settings and
returns the recorded log-probabilities in place of a forward pass; nothing of it is re-typed.
"""

import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

CASES = {
    "grpo": {"loss_type": "grpo"},
    "grpo.kl": {"loss_type": "grpo", "beta": 0.04},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.28},
    "sapo": {"loss_type": "sapo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence",
             "epsilon_low": 3e-4, "epsilon_high": 4e-4},
}  # fmt: skip
"""Name of a row → settings of the trainer."""


def trainer(x, now, **settings):
    """What ``_compute_loss`` reads of a trainer."""
    one = SimpleNamespace(
        num_processes=1, gather=lambda t: t, gather_for_metrics=lambda t: t,
        reduce=lambda t, reduction: t, sync_gradients=True,
    )  # fmt: skip
    args = SimpleNamespace(
        use_bias_correction_kl=False, delta=None, sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05, steps_per_generation=1,
    )  # fmt: skip
    values = {
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
        "importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2,
        "epsilon_high": 0.2, "use_vllm": False, "vllm_importance_sampling_correction": False,
        "current_gradient_accumulation_steps": 1, "max_completion_length": x["mask"].shape[1],
        "_entropy_bonus_enabled": False, "accelerator": one, "args": args,
        "model": SimpleNamespace(training=True), "_metrics": defaultdict(lambda: defaultdict(list)),
        **settings,
    }  # fmt: skip
    made = SimpleNamespace(**values)
    made._get_per_token_logps_and_entropies = lambda *a, **k: (now, torch.zeros_like(now), None)
    return made


def main():
    x = load_file(sys.argv[1])
    mask = x["mask"]
    ids = torch.ones_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids,
        "completion_mask": mask, "advantages": x["sequence_advantages"],
        "old_per_token_logps": x["old"], "ref_per_token_logps": x["ref"],
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    out = {}
    for name, settings in CASES.items():
        now = x["now"].clone().requires_grad_()
        loss = GRPOTrainer._compute_loss(trainer(x, now, **settings), None, inputs)
        out[name] = loss.detach()
        out[f"{name}.grad"] = torch.autograd.grad(loss, now)[0]
    out["logps"] = selective_log_softmax(x["logits"], x["ids"].long())
    out["entropies"] = entropy_from_logits(x["logits"])
    save_file({n: t.detach().contiguous().double() for n, t in out.items()}, sys.argv[2])


if __name__ == "__main__":
    main()
