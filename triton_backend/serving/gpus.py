"""The GPUs of a node: which of its vGPUs need CUDA MPS, and what is set for their workers.

Stages on CPU classes and emulated stages need nothing of this. The daemon of a node is shared by
the generations that live side by side during a rollout, so whoever leaves last stops it.
"""

from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.runtimes.base import CUDA, Artifact
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment
from triton_backend.serving.deployment import Deployment


class NodeGpus:
    """What the workers of one node and generation need to share its GPUs.

    Attributes:
        shared: whether a vGPU is a part of a GPU, so that MPS is needed.
    """

    def __init__(self, deployment: Deployment, node: str) -> None:
        self._deployment = deployment
        self._node = node
        mine = deployment.vgpus_on(node)
        self._on_gpu = frozenset(vgpu for vgpu in mine if self._needs_gpu(vgpu))
        self.shared = any(deployment.pool_of(v).share < WHOLE_GPU for v in self._on_gpu)
        # All GPUs, so that a number or uuid means the same GPU to the daemon and to its clients.
        self._daemon = MpsDaemon.in_folder(deployment.settings.socket_folder / f"mps-{node}", ())

    def start(self) -> None:
        """Start MPS where a vGPU is a part of a GPU.

        Raises:
            InputError: MPS is not available; says what to do.
        """
        if self.shared:
            self._daemon.start()

    def stop(self) -> None:
        """Stop MPS where nobody uses it any more."""
        if self.shared:
            self._daemon.stop_if_idle()

    def environment(self, vgpu: int) -> dict[str, str]:
        """Environment of a vGPU's worker, on top of the node's own."""
        if vgpu not in self._on_gpu:
            return {}
        slot = self._deployment.vgpus[vgpu].slot
        gpu = self._deployment.plan.cluster.node_group_of(slot.node).device(slot.gpu)
        if not self.shared:
            return gpu_environment(gpu)
        return self._daemon.environment(gpu, self._deployment.pool_of(vgpu).share)

    def runtimes_without_gpu(self) -> set[str]:
        """Names of the runtimes that stages here have, where no stage of the node is on a GPU."""
        mine = self._deployment.vgpus_on(self._node)
        return set() if self._on_gpu else {a.runtime for v in mine for a in self._artifacts(v)}

    def _artifacts(self, vgpu: int) -> list[Artifact]:
        root = self._deployment.settings.artifacts
        stages = map(self._deployment.stage_of, self._deployment.rows_of(vgpu))
        named = {stage.artifact for stage in stages if stage.artifact is not None}
        return [] if root is None else [Artifact.read(root / artifact) for artifact in named]

    def _needs_gpu(self, vgpu: int) -> bool:
        return any(artifact.device == CUDA for artifact in self._artifacts(vgpu))
