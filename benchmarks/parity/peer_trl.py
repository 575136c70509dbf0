"""Runs TRL's own loss on recorded inputs: ``peer_trl.py IN.safetensors OUT.safetensors``.

``GRPOTrainer._compute_loss`` is called as it is, on a stand-in that has the trainer's settings and
returns the recorded log-probabilities in place of a forward pass, and so are the statements of
both trainers that turn rewards into advantages; nothing of it is re-typed.
"""

import ast
import inspect
import sys
import textwrap
from collections import defaultdict
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from trl.trainer import grpo_trainer, rloo_trainer
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


ADVANTAGES = {
    "adv.group": {"scale_rewards": "group"},
    "adv.none": {"scale_rewards": "none"},
    "adv.batch": {"scale_rewards": "batch"},
    "adv.gdpo": {"multi_objective_aggregation": "normalize_then_sum"},
    "adv.rloo": {"normalize_advantages": False},
    "adv.rloo.whitened": {"normalize_advantages": True},
}
"""Name of a row → settings of the trainer that computes advantages."""


def statements(module, function, first, last):
    """The statements of a method from the assignment of ``first`` to that of ``last``, compiled.

    The method also generates and scores; these are the lines that turn rewards into advantages.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))

    def assigns(node, name, call=""):
        return (
            isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
            and call in ast.unparse(node.value)
        )  # fmt: skip

    body = tree.body[0].body
    start = next(i for i, node in enumerate(body) if assigns(node, first))
    end = next(i for i, node in enumerate(body) if assigns(node, *last))
    return compile(ast.Module(body[start : end + 1], []), module.__file__, "exec")


def advantages(x):
    out = {}
    grpo = statements(
        grpo_trainer, GRPOTrainer._generate_and_score_completions, "unscorable_mask",
        ("advantages", "nan_to_num"),
    )  # fmt: skip
    rloo = statements(
        rloo_trainer, rloo_trainer.RLOOTrainer._generate_and_score_completions, "grouped_rewards",
        ("advantages", "nan_to_num"),
    )  # fmt: skip
    per_func = x["rewards_per_func"]
    for name, settings in ADVANTAGES.items():
        trainer = SimpleNamespace(**{
            "multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group",
            "reward_weights": x["reward_weights"], "reward_funcs": [None] * per_func.shape[1],
            **settings,
        })  # fmt: skip
        rewards = (per_func * x["reward_weights"]).nansum(dim=1)
        rewards[per_func.isnan().all(dim=1)] = torch.nan
        names = {
            "self": trainer, "rewards_per_func": per_func.clone(), "rewards": rewards,
            "num_generations": int(x["num_generations"]), "device": torch.device("cpu"),
        }  # fmt: skip
        module = rloo_trainer if "rloo" in name else grpo_trainer
        exec(rloo if "rloo" in name else grpo, {**vars(module), **names}, names)
        out[name] = names["advantages"]
    return out


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
    out.update(advantages(x))
    out["logps"] = selective_log_softmax(x["logits"], x["ids"].long())
    out["entropies"] = entropy_from_logits(x["logits"])
    save_file({n: t.detach().contiguous().double() for n, t in out.items()}, sys.argv[2])


if __name__ == "__main__":
    main()
