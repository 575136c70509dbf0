import json

import pytest

from bestiary.errors import DataError
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Sample, Task
from bestiary_reasoning_gym.generate import make_dataset
from bestiary_reasoning_gym.options import ReasoningGymOptions, VerifierOptions
from bestiary_reasoning_gym.reward import VerifierReward
from bestiary_reasoning_gym.task import ReasoningGym
from bestiary_reasoning_gym.verify import accepts_garbage, credit, extract_answer, plain_number

ONE_DIGIT = {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2}


def make(dataset="products", **options):
    options = {
        "config": ONE_DIGIT if dataset in ("products", "chain_sum") else {},
        "size": 60,
        "eval_size": 8,
    } | options
    return ReasoningGym(ReasoningGymOptions(dataset=dataset, **options))


def samples(problem, *responses):
    return [
        Sample(problem.uid, "", r, problem.answer, 3, False, json.loads(json.dumps(problem.extra)))
        for r in responses
    ]


def factors(problem):
    return sorted(problem.extra["metadata"]["expression"].split(" * "))


def test_one_digit_products_are_expressible_and_disjoint():
    task = make(size=1000, eval_size=20)
    assert isinstance(task, Task)
    train, held = task.problems("train"), task.problems("eval")
    assert len(held) == 20
    assert 40 <= len(train) <= 80  # 100 products, those of both orders held out
    assert all(len(f) == 1 for p in (*train, *held) for f in factors(p))
    assert len({p.uid for p in (*train, *held)}) == len(train) + len(held)
    assert not {tuple(factors(p)) for p in train} & {tuple(factors(p)) for p in held}


def test_problems_are_the_same_in_every_run():
    assert make().problems("train") == make().problems("train")
    assert make(seed=1).problems("train") != make().problems("train")


def test_a_problem_is_a_question_to_the_user():
    problem = make(instruction="Number only.").problems("eval")[0]
    (message,) = problem.prompt
    assert message["role"] == "user"
    assert message["content"].endswith("\nNumber only.")
    assert make(chat=False).problems("eval")[0].prompt == problem.extra["question"]


@pytest.mark.parametrize(
    "dataset",
    [
        "products",
        "chain_sum",
        "basic_arithmetic",
        "gcd",
        "lcm",
        "count_bits",
        "letter_counting",
        "simple_equations",
        "number_sequence",
    ],
)
def test_short_data_sets_score_their_own_answers_and_no_garbage(dataset):
    task, reward = make(dataset), VerifierReward(VerifierOptions())
    for problem in task.problems("train")[:10]:
        given = samples(
            problem,
            problem.answer,
            f"So the result is {problem.answer}.",
            "zebra",
            "",
            "the number 987654321123",
        )
        assert reward(given) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_a_sentence_that_contains_the_number_gets_no_credit_for_another_last_number():
    problem = make("chain_sum").problems("train")[0]
    text = f"It is {problem.answer}, or maybe 977"
    assert VerifierReward(VerifierOptions())(samples(problem, text)) == [0.0]


def test_partial_credit_counts_only_when_asked_for():
    problem = make("letter_counting", extract="text").problems("train")[0]
    dataset = make_dataset("letter_counting", {})
    entry = {"question": "", "answer": problem.answer, "metadata": problem.extra["metadata"]}
    text = f"{problem.answer} or so"
    partial = credit(dataset, text, entry)
    assert 0.0 < partial < 1.0
    assert VerifierReward(VerifierOptions())(samples(problem, text)) == [0.0]
    assert VerifierReward(VerifierOptions(partial=True))(samples(problem, text)) == [partial]


def test_a_verifier_that_raises_scores_zero():
    dataset = make_dataset("prime_factorization", {})
    with pytest.raises(ValueError, match="garbage"):
        dataset.score_answer("garbage", dataset[0])
    assert credit(dataset, "garbage", dataset[0]) == 0.0


def test_a_verifier_that_accepts_anything_is_found_and_refused():
    dataset = make_dataset("game_of_life_halting", {})
    assert accepts_garbage(dataset, dataset[0]) is not None
    with pytest.raises(DataError, match="full credit for any text"):
        make("game_of_life_halting", extract="text")


def test_a_verifier_that_runs_the_answer_as_code_gets_numbers_only():
    with pytest.raises(DataError, match="runs the answer as Python code"):
        make("countdown", extract="text")


def test_answers_that_are_no_numbers_need_another_extract():
    with pytest.raises(DataError, match=r"set task\.extract=last_line"):
        make("spell_backward")
    assert make("spell_backward", extract="last_line").problems("eval")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "product"}, "did you mean 'products'"),
        ({"config": {"digits": 1}}, "no setting 'digits'[\\s\\S]*max_digits"),
        ({"config": {"min_digits": 3, "max_digits": 1}}, "refuses"),
        ({"eval_size": 500}, "has only .* different questions"),
        ({"eval_size": 100}, "has only .* different questions|are held out"),
    ],
)
def test_wrong_choices_are_errors_that_help(options, message):
    with pytest.raises(DataError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("= 12", "12"),
        ("+1,200.0", "1200"),
        ("-0", "0"),
        ("5-3", "3"),
        ("x", ""),
        ("3.50", "3.50"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_the_last_number_is_written_plainly(text, number):
    assert extract_answer(text, "last_number") == number


def test_other_ways_to_extract():
    assert extract_answer("thinking\n\n  CAT \n\n", "last_line") == "CAT"
    assert extract_answer(" 1 2\n3 4\n", "text") == "1 2\n3 4"
    assert extract_answer("\n", "last_line") == ""
    assert plain_number("CAT") == "CAT"


def test_task_and_reward_come_through_the_plugin_door():
    registry = load_plugins().registry
    for kind in ("task", "reward"):
        assert registry.get(kind, "reasoning_gym").owner.distribution == "bestiary-reasoning-gym"
    assert registry.get("reward", "reasoning_gym").build(VerifierOptions())([]) == []
