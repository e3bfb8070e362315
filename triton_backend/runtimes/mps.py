"""Virtual GPUs: several processes on one GPU at once, each with a share of its cores, by CUDA MPS.

Here: the MPS control daemon of one node (start, check, stop) and the environment of a process that
runs as one of v vGPUs. Nodes and profiling share it. Not here: which vGPU runs which stage.

A process finds its daemon by a pipe directory; the daemon starts one server per user when the first
process arrives. A process that does not find a daemon silently runs without MPS, so the process
that wants v > 1 checks first.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import check_share, percent_of

CONTROL = "nvidia-cuda-mps-control"
VISIBLE = "CUDA_VISIBLE_DEVICES"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # noqa: S108 -- CUDA's own default
ANSWER_LIMIT_S = 30.0


def mps_installed() -> bool:
    """True if this machine has the MPS control program."""
    return shutil.which(CONTROL) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDaemon:
    """The MPS daemon of one node; two nodes on one machine need two folders of pipes.

    Attributes:
        pipes: where processes find it; a short path, because sockets' names end at 107 characters.
        logs: where it and its servers write what happened.
        gpus: uuids (or indices) of the GPUs it serves; none leaves the choice to the environment.
    """

    pipes: Path
    logs: Path
    gpus: tuple[str, ...] = ()

    @classmethod
    def in_folder(cls, folder: Path, gpus: tuple[str, ...]) -> Self:
        """A daemon with pipes and logs in a node's own folder."""
        return cls(pipes=folder / "pipe", logs=folder / "log", gpus=gpus)

    def start(self) -> None:
        """Start the daemon; one that runs already is kept.

        Raises:
            InputError: MPS is not installed or does not start; the message says what to do.
        """
        if self.running():
            return
        if not mps_installed():
            raise InputError(
                "virtual GPUs",
                f"{CONTROL} is not installed (it comes with the NVIDIA driver's compute tools);"
                " install it, or leave vGPU divisors above 1 out of cluster.yaml",
            )
        for folder in (self.pipes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        code, said = self._control(["-d"])
        if code or not self.running():
            raise InputError(
                "virtual GPUs",
                f"{CONTROL} -d failed with {code}: {said or 'no message'}; its log is"
                f" {self.logs}. GPUs in exclusive-process mode of another user and"
                " containers without shared IPC are the usual reasons",
            )

    def running(self) -> bool:
        """True if the daemon answers."""
        if not mps_installed() or not self.pipes.is_dir():
            return False
        return self._control([], "get_server_list")[0] == 0

    def stop(self) -> None:
        """Ask the daemon to end, which ends its servers; nothing happens where none runs."""
        if self.running():
            self._control([], "quit")

    def stop_if_idle(self) -> None:
        """Stop the daemon unless a process is connected to one of its servers."""
        if not self.running():
            return
        servers = self._control([], "get_server_list")[1].split()
        if not any(self._control([], f"get_client_list {server}")[1] for server in servers):
            self.stop()

    def environment(self, gpu: str, share: int) -> dict[str, str]:
        """The environment of a process with a share (300ths) of `gpu`."""
        return self.whole_environment(gpu) | {SHARE: thread_percentage(share)}

    def whole_environment(self, gpu: str) -> dict[str, str]:
        """The environment of a process beside others on `gpu` or a slice, without a limit."""
        return {**gpu_environment(gpu), PIPES: str(self.pipes), LOGS: str(self.logs)}

    def _control(self, arguments: list[str], line: str = "") -> tuple[int, str]:
        environment = {
            **os.environ,
            **({VISIBLE: ",".join(self.gpus)} if self.gpus else {}),
            PIPES: str(self.pipes),
            LOGS: str(self.logs),
        }
        try:
            done = subprocess.run(
                [CONTROL, *arguments],
                input=line + "\n",
                env=environment,
                capture_output=True,
                text=True,
                timeout=ANSWER_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 1, str(error)
        return done.returncode, (done.stderr or done.stdout).strip()


def gpu_environment(gpu: str) -> dict[str, str]:
    """The environment of a process with a whole GPU or MIG slice of its own."""
    return {VISIBLE: gpu}


def thread_percentage(share: int) -> str:
    """A share of a GPU in percent, as MPS reads it.

    Raises:
        InputError: no such share.
    """
    check_share("vGPU share", share)
    return f"{percent_of(share):.4g}"
