import pytest

from bestiary.errors import PluginError
from bestiary.plugins.manager import load_plugins
from bestiary.protocols import Task
from bestiary_tasks.addition import Addition, held_out
from bestiary_tasks.options import AdditionOptions


@pytest.fixture(scope="module")
def task():
    return Addition(AdditionOptions())


def operands(problem):
    return tuple(map(int, problem.uid.split("+")))


def test_the_two_splits_are_all_8100_problems(task):
    assert isinstance(task, Task)
    train, held = task.problems("train"), task.problems("eval")
    assert (len(train), len(held)) == (7588, 512)
    pairs = {operands(p) for p in (*train, *held)}
    assert pairs == {(a, b) for a in range(10, 100) for b in range(10, 100)}


def test_neither_order_of_a_held_out_sum_occurs_in_training(task):
    train = {frozenset(operands(p)) for p in task.problems("train")}
    held = {frozenset(operands(p)) for p in task.problems("eval")}
    assert not train & held


def test_a_problem_is_text_answer_and_target(task):
    problem = next(p for p in (*task.problems("train"), *task.problems("eval")) if p.uid == "12+34")
    assert (problem.prompt, problem.answer, problem.target) == ("12+34=", "46", "46")
    assert task.reward == "exact_match"
    assert task.max_tokens == 4  # three digits and the end token


def test_the_split_is_fixed_and_its_prefix_is_a_fair_sample(task):
    assert held_out(AdditionOptions()) == held_out(AdditionOptions())
    # A smaller split is the beginning of the larger one, apart from the last pair.
    small = held_out(AdditionOptions(eval_size=100))
    assert len(small) == 100
    assert small[:98] == held_out(AdditionOptions())[:98]
    means = [sum(operands(p)) for p in task.problems("eval")[:128]]
    assert 100 < sum(means) / 128 < 118  # of all problems: 109


@pytest.mark.parametrize(("digits", "count"), [(1, 100), (2, 8100)])
def test_other_numbers_of_digits(digits, count):
    task = Addition(AdditionOptions(digits=digits, eval_size=10))
    assert len(task.problems("train")) + len(task.problems("eval")) == count
    assert len(task.problems("eval")) == 10


@pytest.mark.parametrize("options", [{"digits": 4}, {"eval_size": 0}, {"eval_size": 5000}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"is wanted|can be held out"):
        AdditionOptions(**options)


def test_the_task_comes_through_the_plugin_door():
    component = load_plugins().registry.get("task", "addition")
    assert component.owner.distribution == "bestiary-tasks"
    assert len(component.build(AdditionOptions(eval_size=4)).problems("eval")) == 4
    with pytest.raises(PluginError, match="takes options of class AdditionOptions"):
        component.build(object())
