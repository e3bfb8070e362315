"""The GPUs of a node: which of its vGPUs need CUDA MPS, and what is set for their workers.

Workers of a class that is divided by MIG get their slice by its uuid, and a daemon of their slice
where several of them share it: each may then use all of the slice, as it was measured.

Stages on CPU classes and emulated stages need nothing of this. The daemon of a node is shared by
the generations that live side by side during a rollout, so the last to leave stops it.
"""

from triton_backend.contract.shares import Mig, mig_cell, runs_beside
from triton_backend.runtimes.base import CUDA, Artifact
from triton_backend.runtimes.mig import assign_slices, list_slices
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment
from triton_backend.serving.deployment import Deployment


class NodeGpus:
    """Means of one node and generation to share its GPUs.

    Attributes:
        shared: whether a vGPU is a part of a GPU, so that MPS is needed.
    """

    def __init__(self, deployment: Deployment, node: str) -> None:
        self._deployment = deployment
        self._node = node
        mine = deployment.vgpus_on(node)
        self._on_gpu = frozenset(vgpu for vgpu in mine if self._needs_gpu(vgpu))
        self._mig = self._divided()
        self._slices: dict[int, str] = {}  # CUDA's name of a vGPU's slice
        self._in_slice: dict[str, MpsDaemon] = {}  # of slices that several workers share
        self.shared = any(runs_beside(deployment.pool_of(v).share) for v in self._on_gpu)
        # All GPUs, so that a number or uuid means the same GPU to the daemon and to its clients.
        self._daemon = MpsDaemon.in_folder(deployment.settings.socket_folder / f"mps-{node}", ())

    def start(self) -> None:
        """Start MPS where a vGPU is a part of a GPU, or of a slice.

        Raises:
            InputError: MPS or a slice is not there; says what to do.
        """
        if self._mig is not None:
            self._find_slices(self._mig)
            for daemon in self._in_slice.values():
                daemon.start()
        elif self.shared:
            self._daemon.start()

    def stop(self) -> None:
        """Stop MPS where it is not used any more."""
        for daemon in self._in_slice.values():
            daemon.stop_if_idle()
        if self.shared and self._mig is None:
            self._daemon.stop_if_idle()

    def environment(self, vgpu: int) -> dict[str, str]:
        """Environment of a vGPU's worker, on top of the node's own."""
        if vgpu not in self._on_gpu:
            return {}
        if self._mig is not None:
            uuid = self._slices[vgpu]
            daemon = self._in_slice.get(uuid)
            return gpu_environment(uuid) if daemon is None else daemon.whole_environment(uuid)
        slot = self._deployment.vgpus[vgpu].slot
        gpu = self._deployment.plan.cluster.node_group_of(slot.node).device(slot.gpu)
        if not self.shared:
            return gpu_environment(gpu)
        return self._daemon.environment(gpu, self._deployment.pool_of(vgpu).share)

    def _divided(self) -> Mig | None:
        """How the cards here are divided by MIG, where vGPUs here are on a GPU."""
        for vgpu in self._on_gpu:
            name = self._deployment.pool_of(vgpu).gpu_class
            return self._deployment.plan.cluster.gpu_class(name).mig
        return None

    def _find_slices(self, mig: Mig) -> None:
        """Give every vGPU its slice; the daemon of a slice has a folder of its own."""
        vgpus = [self._deployment.vgpus[v] for v in self._deployment.vgpus_on(self._node)]
        vgpus.sort(key=lambda vgpu: vgpu.slot)
        cells = [(v.slot.gpu, v.slot.slot, self._deployment.pool_of(v.index).share) for v in vgpus]
        lies = mig.lies(cells)
        group = self._deployment.plan.cluster.node_group_of(vgpus[0].slot.node)
        uuids = assign_slices(
            f"node {self._node}, MIG slices",
            {gpu: mig.slices_of(s for g, _, s in cells if g == gpu) for gpu, _, _ in cells},
            list_slices(group.devices),
        )
        folder = self._deployment.settings.socket_folder
        for vgpu, (gpu, _, share), number in zip(vgpus, cells, lies, strict=True):
            uuid = uuids[gpu][number]
            self._slices[vgpu.index] = uuid
            cell = mig_cell(share)
            if cell is not None and cell.processes > 1:
                place = folder / f"mps-{self._node}-{gpu}.{number}"
                self._in_slice[uuid] = MpsDaemon.in_folder(place, (uuid,))

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
