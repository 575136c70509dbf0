"""Runs verl's own functions on recorded inputs: ``peer_verl.py IN.safetensors OUT.safetensors``.

Nothing of verl is re-typed here: each entry calls a function of ``core_algos`` or of the rollout
correction. Gradients are those of verl's scalar losses.
"""

import sys

import numpy as np
import torch
import verl.trainer.ppo.core_algos as algos
import verl.trainer.ppo.rollout_corr_helper as corr
from safetensors.torch import load_file, save_file
from verl.trainer.ppo.core_algos import FixedKLController  # noqa: F401 - proves that it is verl's


class Config(dict):
    """What verl's functions read of a configuration, by attribute and by get."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


algos.ActorConfig = Config  # some functions insist on the type of their configuration


ACTOR = Config(
    clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0,
    tau_pos=1.0, tau_neg=1.05, global_batch_info={}, policy_loss=Config(dro_beta=0.3),
)  # fmt: skip
NARROW = Config(ACTOR, clip_ratio_low=3e-4, clip_ratio_high=4e-4)
WIDE = Config(ACTOR, clip_ratio_low=0.4, clip_ratio_high=0.4)


def estimators(x):
    f = algos.ADV_ESTIMATOR_REGISTRY
    m, index = x["mask"], x["group"].numpy()
    r = {"token_level_rewards": x["token_level_rewards"], "response_mask": m}
    g = {**r, "index": index}
    out = {}
    out["gae"], out["gae.returns"] = f["gae"](**r, values=x["values"], gamma=0.99, lam=0.95)
    out["grpo"] = f["grpo"](**g)[0]
    out["grpo.no_std"] = f["grpo"](**g, norm_adv_by_std_in_grpo=False)[0]
    out["grpo_vectorized"] = f["grpo_vectorized"](**g)[0]
    out["reinforce_plus_plus"] = f["reinforce_plus_plus"](**r, config=Config(gamma=0.99))[0]
    out["reinforce_plus_plus_baseline"] = f["reinforce_plus_plus_baseline"](**g)[0]
    out["rloo"] = f["rloo"](**g)[0]
    out["rloo_vectorized"] = f["rloo_vectorized"](**g)[0]
    out["remax"] = f["remax"](**r, reward_baselines=x["baseline"])[0]
    out["opo"] = f["opo"](**g)[0]
    out["gpg"] = f["gpg"](**g)[0]
    out["otb"] = f["optimal_token_baseline"](
        **g, old_log_probs=x["old"], sum_pi_squared=x["squared"]
    )[0]
    big = index < 2  # verl refuses groups of one
    out["grpo_passk"] = f["grpo_passk"](
        token_level_rewards=r["token_level_rewards"][big], response_mask=m[big], index=index[big],
        config=Config(norm_adv_by_std_in_grpo=True),
    )[0]  # fmt: skip
    return out


def losses(x):
    out = {}

    def run(name, function, config, mode):
        now = x["now"].clone().requires_grad_()
        made = function(
            old_log_prob=x["old"], log_prob=now, advantages=x["advantages"],
            response_mask=x["mask"], loss_agg_mode=mode, config=config,
        )  # fmt: skip
        loss = made[0] if isinstance(made, tuple) else made
        out[name] = loss.detach()
        out[f"{name}.grad"] = torch.autograd.grad(loss, now)[0]

    f = algos.POLICY_LOSS_REGISTRY
    for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
                 "seq-mean-token-sum-norm"):  # fmt: skip
        run(f"vanilla.{mode}", f["vanilla"], ACTOR, mode)
    run("gspo", f["gspo"], NARROW, "seq-mean-token-mean")
    run("gspo.wide", f["gspo"], ACTOR, "seq-mean-token-mean")
    run("sapo", f["sapo"], ACTOR, "seq-mean-token-mean")
    run("loss.gpg", f["gpg"], ACTOR, "token-mean")
    run("dro", f["dro"], ACTOR, "token-mean")
    run("cispo", f["cispo"], ACTOR, "token-mean")
    run("geo_mean", f["geo_mean"], WIDE, "seq-mean-token-mean")
    tv = Config(ACTOR, clip_ratio_low=0.05, clip_ratio_high=0.05, clip_ratio_c=1.5)
    run("dppo_tv", f["dppo_tv"], tv, "token-mean")
    run("dppo_kl", f["dppo_kl"], tv, "token-mean")
    cov = Config(clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=5.0, kl_cov_ratio=0.2,
                 ppo_kl_coef=0.7)  # fmt: skip
    # A range that clips nothing: verl takes clipped tokens out of the draw.
    wide = Config(ACTOR, clip_ratio_low=0.99, clip_ratio_high=99.0, policy_loss=cov)
    run("clip_cov", f["clip_cov"], wide, "token-mean")
    run("kl_cov", f["kl_cov"], wide, "token-mean")
    values = x["values"].clone().requires_grad_()
    value = algos.compute_value_loss(values, x["returns"], x["old_values"], x["mask"], 0.2)[0]
    out["value"] = value.detach()
    out["value.grad"] = torch.autograd.grad(value, values)[0]
    for kind in ("kl", "abs", "mse", "low_var_kl", "kl+", "low_var_kl+"):
        now = x["now"].clone().requires_grad_()
        kl = algos.kl_penalty(now, x["ref"], kind)
        total = (kl * x["mask"]).sum()
        out[f"kl.{kind}"] = kl.detach() * x["mask"]
        out[f"kl.{kind}.grad"] = torch.autograd.grad(total, now)[0]
    logits = x["logits"]
    out["entropy"] = algos.compute_entropy_loss(logits, x["mask"]).detach()
    return out


def corrections(x):
    out = {}
    ratio = x["old"] - x["rollout"]
    for level in ("token", "sequence"):
        made = corr.compute_rollout_correction_weights(ratio, x["mask"], level, 2.0)
        out[f"tis.{level}"] = made[0]
    made = corr.compute_rollout_correction_weights(ratio, x["mask"], "token", 2.0, True)
    out["tis.normalised"] = made[0]
    kept = corr.compute_rollout_rejection_mask(ratio, x["mask"], "token_k1", "0.5_2.0")
    out["reject.token"] = kept[0].to(ratio.dtype)
    kept = corr.compute_rollout_rejection_mask(ratio, x["mask"], "seq_mean_k1", "0.8_1.25")
    out["reject.geometric"] = kept[0].to(ratio.dtype)
    return out


def controller(x):
    """The adaptive coefficient over a few steps."""
    adaptive = algos.AdaptiveKLController(init_kl_coef=0.2, target_kl=0.1, horizon=1000)
    found = []
    for kl in x["kls"].tolist():
        adaptive.update(kl, 64)
        found.append(float(adaptive.value))
    return {"controller": torch.tensor(found, dtype=torch.float64)}


def main():
    x = load_file(sys.argv[1])
    out = {}
    failed = []
    for part in (estimators, losses, corrections, controller):
        try:
            out.update(part(x))
        except Exception as error:  # reported, and the rest goes on
            failed.append(f"{part.__name__}: {type(error).__name__}: {error}")
    clean = {name: t.detach().contiguous().double() for name, t in out.items()}
    save_file(clean, sys.argv[2], metadata={"failed": "; ".join(failed), "numpy": np.__version__})
    if failed:
        sys.exit("; ".join(failed))


if __name__ == "__main__":
    main()
