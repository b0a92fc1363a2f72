"""What did all replicas of the plain simulator do, step by step?"""

from typing import NamedTuple

import numpy as np

from inferometer.simulate.outcome import PartLog, StepLog


class Log(NamedTuple):
    """The rows of a ``StepLog`` and of a ``PartLog``."""

    steps: list[tuple[int, ...]]
    parts: list[tuple[int, ...]]

    def step_log(self) -> StepLog:
        """The rows as columns."""
        columns = (
            np.array(self.steps, dtype=np.int64)
            .reshape(len(self.steps), len(StepLog._fields) - 3)
            .T
        )
        in_order = np.empty(0, np.int64), np.empty(0, np.int64)
        return StepLog._make([*columns, *in_order, np.array([len(self.steps)])])

    def part_log(self) -> PartLog:
        """The rows as columns."""
        columns = (
            np.array(self.parts, dtype=np.int64)
            .reshape(len(self.parts), len(PartLog._fields) - 1)
            .T
        )
        step_index, request_index, slot, kind, n_computed, n_delivered = columns.astype(np.int32)
        return PartLog(
            step_index,
            request_index,
            slot,
            kind.astype(np.int8),
            n_computed,
            n_delivered,
            np.array([len(self.parts)]),
        )
