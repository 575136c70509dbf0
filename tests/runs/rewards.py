"""Reward functions for tests of runs, used by ``reward=custom reward.path=…``."""

from bestiary.protocols import Score


def letters(samples):
    """A number in [0, 1] that depends on the whole response, so groups differ."""
    return [sum(map(ord, s.response)) % 7 / 6 for s in samples]


def holes(samples):
    """Every third sample has no score."""
    scores = letters(samples)
    return [None if i % 3 == 0 else Score(score) for i, score in enumerate(scores)]


def steps(samples):
    """A reward for each response token, by its place and the response's length."""
    return [
        Score(
            0.0,
            spans=tuple(
                (i, i + 1, (i + sum(map(ord, s.response))) % 3) for i in range(s.response_len)
            ),
        )
        for s in samples
    ]


steps.spans = True


class FailsOnCall:
    """Raises in its n-th call; 0 never does."""

    def __init__(self, number=0):
        self.number, self.calls = number, 0

    def __call__(self, samples):
        self.calls += 1
        if self.calls == self.number:
            raise ValueError(f"broken on purpose in call {self.number}")
        return letters(samples)


def raises(samples):
    raise ZeroDivisionError("the reward divides by zero")


def too_few(samples):
    return [0.0] * (len(samples) - 1)


def interrupts(samples):
    """Ctrl-C in the middle of a step."""
    raise KeyboardInterrupt
