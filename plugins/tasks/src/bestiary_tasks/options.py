"""Options of the tasks."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AdditionOptions:
    """Sums of two numbers with equally many digits."""

    digits: int = 2
    """Digits of each operand, 1 to 3: two digits are 10 to 99."""
    eval_size: int = 512
    """Problems that are held out."""

    def __post_init__(self) -> None:
        if self.digits not in (1, 2, 3):
            raise ValueError(f"digits={self.digits}: 1, 2 or 3 is wanted")
        count = len(self.operands()) ** 2
        if not 1 <= self.eval_size <= count // 2:
            raise ValueError(
                f"eval_size={self.eval_size}: 1 to {count // 2} of the {count} problems can be "
                "held out"
            )

    def operands(self) -> range:
        """All operands."""
        return range(10 ** (self.digits - 1) if self.digits > 1 else 0, 10**self.digits)
