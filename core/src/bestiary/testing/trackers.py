"""The suite of trackers."""

from pathlib import Path

from bestiary.protocols import RunInfo, Tracker
from bestiary.testing.suite import Suite


class TrackerSuite(Suite):
    """The contract of a tracker."""

    kind = "tracker"

    def started(self, folder: Path, attempt: int = 1) -> Tracker:
        """A tracker of a run in ``folder``."""
        tracker: Tracker = self.build()
        assert isinstance(tracker, Tracker)
        tracker.start(RunInfo(folder, "test run", {"seed": 0}, {"version": "0"}, attempt))
        return tracker

    def test_a_run_is_recorded(self, tmp_path: Path) -> None:
        """Start, steps, samples, finish."""
        tracker = self.started(tmp_path)
        for step in range(3):
            tracker.log(step, {"step": float(step), "reward/mean": 0.5, "loss/policy": -0.1})
        row = {"prompt": "1+1=", "response": "2", "reward": 1.0, "extra": {"a": [1]}}
        tracker.samples(2, [row])
        tracker.finish("finished")

    def test_a_repeated_step_and_odd_numbers_are_taken(self, tmp_path: Path) -> None:
        """A redone step comes twice; a metric may be NaN or infinite."""
        tracker = self.started(tmp_path)
        for value in (0.1, float("nan"), float("inf")):
            tracker.log(1, {"step": 1.0, "reward/mean": value})
        tracker.finish("finished")

    def test_a_run_can_fail_before_its_first_step(self, tmp_path: Path) -> None:
        """Finish comes once, whatever happened."""
        self.started(tmp_path).finish("failed")

    def test_a_resumed_run_is_recorded(self, tmp_path: Path) -> None:
        """A later attempt goes on in the same folder."""
        first = self.started(tmp_path)
        first.log(1, {"step": 1.0})
        first.finish("stopped")
        second = self.started(tmp_path, attempt=2)
        second.log(2, {"step": 2.0})
        second.finish("finished")
