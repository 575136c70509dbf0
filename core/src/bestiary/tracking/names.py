"""Every metric name with its unit and meaning: the one place where they are documented.

A member that logs a name of its own documents it on its own page; :func:`describe` answers for it
by its prefix. ``docs/metrics.md`` is made from this table (:mod:`bestiary.tracking.page`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True, slots=True)
class MetricDoc:
    """What a number in the record means.

    Args:
        name: key in the record; a name that ends in ``/`` or holds ``<…>`` stands for a family.
        unit: unit of the value, empty for a pure number.
        better: which direction is an improvement, empty where neither is by itself.
        help: one sentence.
    """

    name: str
    unit: str
    better: Better
    help: str


_DOCS = (
    MetricDoc("step", "", "", "Optimizer steps of the run so far; 0 is the state before training."),
    MetricDoc(
        "attempt", "", "", "Counts resumes from 1; a later attempt replaces the steps it redoes."
    ),
    MetricDoc("version", "", "", "Version of the policy weights that the step ended with."),
    MetricDoc("nonfinite", "", "", "Names of the metrics that were NaN or infinite (stored null)."),
    MetricDoc("reward/mean", "", "higher", "Mean reward of the valid trainable samples."),
    MetricDoc("reward/std", "", "", "Standard deviation of the reward over the same samples."),
    MetricDoc(
        "eval/exact_match",
        "fraction",
        "higher",
        "Held-out answers that are right at temperature 1, mean of eval.samples a problem.",
    ),
    MetricDoc("eval/greedy", "fraction", "higher", "Held-out answers that are right, greedy."),
    MetricDoc(
        "eval/pass_at_k",
        "fraction",
        "higher",
        "Held-out problems of which any of the k sampled answers is right; k is eval.samples.",
    ),
    MetricDoc("eval/reward", "", "higher", "Mean reward of the sampled held-out responses."),
    MetricDoc(
        "eval/truncated", "fraction", "lower", "Sampled held-out responses cut by the limit."
    ),
    MetricDoc("eval/response_len", "tokens", "", "Mean length of the sampled held-out responses."),
    MetricDoc(
        "kl/reference",
        "nats/token",
        "",
        "Estimated KL(policy || reference), mean over response tokens.",
    ),
    MetricDoc(
        "kl/rollout",
        "nats/token",
        "lower",
        "Estimated KL between the engine's behaviour policy and the trainer's, same weights.",
    ),
    MetricDoc(
        "entropy",
        "nats/token",
        "",
        "Entropy of the policy at the sampling temperature, estimated from the sampled tokens.",
    ),
    MetricDoc("response_len/mean", "tokens", "", "Mean response length, end token included."),
    MetricDoc("response_len/max", "tokens", "", "Longest response of the step."),
    MetricDoc("truncated/fraction", "fraction", "lower", "Responses cut by the length limit."),
    MetricDoc("valid/fraction", "fraction", "higher", "Samples that have a usable reward."),
    MetricDoc(
        "groups/zero_variance",
        "fraction",
        "lower",
        "Groups whose rewards are all equal, so that they teach nothing.",
    ),
    MetricDoc("cost/mean", "", "lower", "Mean raw cost of the valid trainable samples."),
    MetricDoc("eval/cost", "", "lower", "Mean cost of the sampled held-out responses."),
    MetricDoc(
        "eval/accuracy", "fraction", "higher", "Held-out pairs that are ordered as people did."
    ),
    MetricDoc("kl/reward", "nats/token", "", "The KL estimate inside the token rewards."),
    MetricDoc("kl/coef", "", "", "Coefficient β of the KL that the step used."),
    MetricDoc("lagrange/lambda", "", "", "Multiplier λ that the step's actor was trained with."),
    MetricDoc("lagrange/cost", "", "", "J_C: mean of the last raw costs of the run."),
    MetricDoc("lagrange/violation", "", "lower", "J_C - d; above 0 the constraint is broken."),
    MetricDoc("loss/policy", "", "", "Policy loss; its level says little, its jumps do."),
    MetricDoc("covariance/mean", "", "", "Mean of (A - mean)(log π - mean) over tokens."),
    MetricDoc(
        "covariance/selected", "fraction", "", "Tokens that clip_cov or kl_cov treats apart."
    ),
    MetricDoc("clip/fraction", "fraction", "", "Tokens whose ratio the loss clipped."),
    MetricDoc("ratio/max", "", "lower", "Largest ratio of current to old probability."),
    MetricDoc("grad_norm", "", "", "Norm of the whole gradient before clipping."),
    MetricDoc("lr", "", "", "Learning rate of the step."),
    MetricDoc(
        "throughput/tokens_per_s",
        "tokens/s",
        "higher",
        "Prompt and response tokens of the step over time/step_s.",
    ),
    MetricDoc("time/rollout_s", "s", "lower", "Generating the responses."),
    MetricDoc("time/score_s", "s", "lower", "Rewards and log-probabilities of frozen roles."),
    MetricDoc("time/update_s", "s", "lower", "Old log-probabilities, values and optimizer steps."),
    MetricDoc("time/sync_s", "s", "lower", "Moving new weights to the rollout engine."),
    MetricDoc("time/eval_s", "s", "lower", "Held-out evaluation; not part of time/step_s."),
    MetricDoc("time/step_s", "s", "lower", "The whole step without evaluation."),
    MetricDoc(
        "data/tokens_generated", "tokens", "", "Response tokens generated for training so far."
    ),
    MetricDoc("data/samples", "samples", "", "Responses generated for training so far."),
    MetricDoc("data/epoch", "epochs", "", "Passes over the training prompts so far."),
    MetricDoc("time/driver_cpu_s", "s", "lower", "Processor time of the controller in a step."),
    MetricDoc("driver/bytes", "bytes", "lower", "Bytes that went through the controller."),
    MetricDoc(
        "staleness/max", "versions", "lower", "Trainer version minus the oldest token's version."
    ),
    MetricDoc("update/skipped", "updates", "lower", "Updates skipped for a non-finite gradient."),
)

METRICS: Mapping[str, MetricDoc] = {doc.name: doc for doc in _DOCS}
"""Documentation by metric name."""

FAMILIES: Mapping[str, MetricDoc] = {
    doc.name.partition("<")[0]: doc
    for doc in (
        MetricDoc("rank<r>/<metric>", "", "", "The metric as worker r alone reported it."),
        MetricDoc("reward/<part>", "", "higher", "A named part of the reward, mean."),
        MetricDoc("eval/<name>", "", "", "A further held-out measure."),
        MetricDoc("kl/<name>", "nats/token", "", "A further divergence, mean over tokens."),
        MetricDoc(
            "loss/<term>", "", "", "A further term of the objective, before its coefficient."
        ),
        MetricDoc("clip/<name>", "fraction", "", "A further fraction of clipped tokens."),
        MetricDoc("ratio/<name>", "", "", "A further statistic of the probability ratio."),
        MetricDoc("time/<phase>_s", "s", "lower", "Seconds of a further phase."),
        MetricDoc("throughput/<name>", "1/s", "higher", "A further rate."),
        MetricDoc("data/<name>", "", "", "A further count of data."),
        MetricDoc("groups/<name>", "fraction", "", "A further property of groups."),
        MetricDoc(
            "update/<name>",
            "",
            "",
            "Seconds, tokens and skipped steps inside the updates of a step.",
        ),
        MetricDoc(
            "advantages/<name>", "", "", "Spread of the advantages over the trained samples."
        ),
        MetricDoc("sampler/<name>", "", "", "What the sampler did: judged, dropped, pass rates."),
        MetricDoc("value/<name>", "", "", "A value head: error, mean value and return, clipping."),
        MetricDoc(
            "correction/<name>", "", "", "Importance weights: mean, share capped or dropped."
        ),
        MetricDoc("preference/<name>", "", "", "Training pairs: accuracy, margin, safety."),
        MetricDoc("lagrange/<name>", "", "", "A further number of the constraint."),
        MetricDoc("cost/<name>", "", "", "A part of the cost, mean over samples."),
        MetricDoc("vtrace/<name>", "fraction", "", "Tokens whose ratio V-trace cuts."),
        MetricDoc("dpo/<name>", "", "", "Pairs that an online step found."),
        MetricDoc("raft/<name>", "fraction", "", "Responses that were imitated."),
    )
}
"""Documentation of the families, by prefix; an exact name in ``METRICS`` goes before them."""


def describe(name: str) -> MetricDoc | None:
    """What a metric means.

    ``rank3/time/update_s`` has the unit of ``time/update_s``; ``loss/entropy`` is answered by its
    family.

    Args:
        name: a key of the record.

    Returns:
        The documentation under ``name`` itself, or None for a name of no documented family.
    """
    exact = METRICS.get(name)
    if exact is not None:
        return exact
    head, slash, rest = name.partition("/")
    if slash and head.startswith("rank") and head[4:].isdigit():
        inner = describe(rest)
        about = f" {inner.help}" if inner else ""
        return MetricDoc(
            name,
            inner.unit if inner else "",
            inner.better if inner else "",
            f"Worker {head[4:]} alone.{about}",
        )
    family = FAMILIES.get(f"{head}/") if rest else None
    if family is None:
        return None
    return MetricDoc(name, family.unit, family.better, family.help)


def nearest(name: str) -> str:
    """The documented name closest to ``name``, or an empty string."""
    found = get_close_matches(name, METRICS, n=1)
    return found[0] if found else ""
