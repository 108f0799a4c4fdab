"""The clients: who sends which request when."""

from collections import deque
from math import inf

from mocker_simulator.prompts import PromptKeys
from mocker_simulator.records import RequestRecord, SimulatedRequest
from mocker_simulator.workload import Workload


class Source:
    """Sends a workload at its own times, or by a number of clients that wait for their answers."""

    def __init__(self, workload: Workload, block_size: int, concurrency: int | None) -> None:
        self._workload = workload
        self._keys = PromptKeys(workload.trace_block_size, block_size)
        self.sent = 0
        self._due: deque[float] | None = None
        """When clients are free for the next request; None if nobody waits for an answer."""
        if concurrency is not None:
            self._due = deque([0.0] * concurrency)
        self.next_ms = inf
        """When the next request comes; infinite if none is due."""
        self._look_ahead()

    def send(self) -> SimulatedRequest:
        """Return the next request."""
        index, workload = self.sent, self._workload
        record = RequestRecord(
            index, self.next_ms, workload.prompt_tokens[index], workload.output_tokens[index]
        )
        self.sent += 1
        if self._due is not None:
            self._due.popleft()
        self._look_ahead()
        keys = self._keys.keys(workload.block_ids[index], record.prompt_tokens)
        return SimulatedRequest(record, prompt_keys=keys)

    def completed(self, now_ms: float) -> None:
        """Hear that a request is done; its client is free."""
        if self._due is not None:
            self._due.append(now_ms)
            self._look_ahead()

    def _look_ahead(self) -> None:
        if self.sent == len(self._workload):
            self.next_ms = inf
        elif self._due is None:
            self.next_ms = self._workload.arrivals_ms[self.sent]
        else:
            self.next_ms = self._due[0] if self._due else inf
