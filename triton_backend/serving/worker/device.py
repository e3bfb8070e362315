"""The vGPU of a worker: one run at a time, whichever thread asks, and shown on the health board.

Not here: which run is next (`worker_jobs`), what is run (`worker_compute`, `direct`).
"""

import threading

from triton_backend.runtimes.clock import Clock
from triton_backend.serving.liveness.health import HealthBoard
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.worker.compute import Run
from triton_backend.serving.worker.gateway_time import GatewayTime


class Device:
    """Whatever runs on it runs through here.

    Args:
        latency_us_by_batch: of its stage, at batch 1, 2, …
        board: where its node looks how long it has been busy.
    """

    def __init__(
        self,
        vgpu: int,
        latency_us_by_batch: tuple[int, ...],
        board: HealthBoard,
        clock: Clock,
        gateway_time: GatewayTime,
    ) -> None:
        self._vgpu = vgpu
        self._latency_us_by_batch = latency_us_by_batch
        self._board = board
        self._clock = clock
        self._gateway_time = gateway_time
        self._lock = threading.Lock()

    def expected_us(self, samples: int) -> int:
        """What a run of so many samples takes by its profile."""
        return self._latency_us_by_batch[samples - 1]

    def run(self, stage: Run, inputs: Arrays, outputs: Arrays, samples: int) -> tuple[int, int]:
        """Run a stage once on so many samples; when it began and ended (gateway's time)."""
        with self._lock:
            start_us = self._clock.now_us()
            self._board.busy(self._vgpu, start_us, self.expected_us(samples))
            try:
                stage(inputs, outputs)
                ahead_us = self._gateway_time.ahead_us
                return start_us - ahead_us, self._clock.now_us() - ahead_us
            finally:
                self._board.idle(self._vgpu)
