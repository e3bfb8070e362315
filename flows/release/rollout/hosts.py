"""The other hosts of a running system in a rollout: each node's files, loads and unloads there.

Every host runs a Triton of its own with the nodes that are there. Its repository API is reached at
the host's address (`hosts` of the settings) and port (`host_http_port`), with the system's token.
Files are written by a node that runs there already, and artifacts that the host lacks are found
before anything is changed and sent to it (the other end is `triton_backend/serving/node/remote_files.py`).
"""

import base64
import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from flows.release.server.running import ServerError, ServerState
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.serve_folder.repository import (
    GenerationNames,
    node_generation,
    node_model,
    used_nodes,
)
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingArtifacts:
    """What one host lacks, and the node model there that is asked."""

    there: ServerState
    speaker: str
    artifacts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtherHosts:
    """Hosts besides the gateway's.

    Attributes:
        gateway: the running system, for its token.
        addresses: of each node that runs elsewhere, by its name.
        http_port: of the hosts' Tritons.
        gateway_host: address of the gateway's own host.
        artifacts: folder of the artifacts on the gateway's host, if it has any.
    """

    gateway: ServerState
    addresses: Mapping[str, str]
    http_port: int
    gateway_host: str
    artifacts: Path | None = None

    @classmethod
    def of(cls, gateway: ServerState) -> Self:
        """The hosts that a running system was started with."""
        settings = ServeSettings.read(gateway.folder / SETTINGS_NAME)
        return cls(
            gateway,
            settings.hosts,
            settings.host_http_port,
            settings.gateway_host,
            settings.artifacts,
        )

    def at(self, address: str) -> ServerState:
        """The Triton of one host."""
        there = {"http_address": address, "ports": {"http": self.http_port}}
        return ServerState({**self.gateway.data, **there})

    def nodes(self, plan: Plan) -> dict[str, list[str]]:
        """Nodes elsewhere that have vGPUs of a plan, by address."""
        found: dict[str, list[str]] = {}
        for node in used_nodes(plan):
            if node in self.addresses:
                found.setdefault(self.addresses[node], []).append(node)
        return found

    def check(self, old: Plan, new: Plan) -> None:
        """Whether a plan can follow another one without a restart.

        Raises:
            InputError: a node of the new plan is at a host where no node of the old one is.
        """
        for node in used_nodes(new):
            host = new.cluster.node_group_of(new.cluster.node_index(node)).host
            known = self.addresses.get(node, self.gateway_host)
            if host is not None and host != known:
                raise InputError(
                    f"plan {new.plan_id}, node {node}", f"is at {host}, but is served at {known}"
                )
        idle = set(self.nodes(new)) - set(self.nodes(old))
        if idle:
            raise InputError(
                f"plan {new.plan_id}, host {min(idle)}",
                f"no node of plan {old.plan_id} runs there that could take it over:"
                " stop, and serve the new plan",
            )

    def missing_artifacts(
        self, old: Plan, old_generation: int, new: Plan
    ) -> list[MissingArtifacts]:
        """Artifacts that hosts lack for a plan and that can be sent to them.

        Raises:
            InputError: a host lacks one that is not here either.
            ServerError: a host does not answer.
        """
        speakers = self.nodes(old)
        found = (
            find_missing(
                self.at(address),
                node_model(speakers[address][0], old_generation),
                artifacts_on(new, nodes),
                self.artifacts,
            )
            for address, nodes in self.nodes(new).items()
        )
        return [missing for missing in found if missing is not None]

    def put_generation(
        self,
        old: Plan,
        old_generation: int,
        new: Plan,
        generation: int,
        names: GenerationNames,
    ) -> None:
        """Send what hosts lack, and write the new generation's files on all that have a part in it.

        Raises:
            InputError: as `missing_artifacts`.
            ServerError: a host does not answer, or refuses.
        """
        for missing in self.missing_artifacts(old, old_generation, new):
            assert self.artifacts is not None  # what is missing was found there
            send_artifacts(missing, self.artifacts)
        speakers = self.nodes(old)
        for address, nodes in self.nodes(new).items():
            self.at(address).ask(
                node_model(speakers[address][0], old_generation),
                {
                    "command": "put_generation",
                    "generation": generation,
                    "plan": new.to_dict(),
                    "nodes": nodes,
                    "front_ports": dict(names.ports),
                    "workers": names.workers.to_dict(),
                },
            )

    def load(self, plan: Plan, generation: int) -> None:
        """Load the node models of a generation: their workers start.

        Raises:
            ServerError: a host refuses or does not answer.
        """
        for address, nodes in self.nodes(plan).items():
            for node in nodes:
                self.at(address).load(node_model(node, generation))

    def unload(self, plan: Plan, generation: int, by: tuple[Plan, int]) -> None:
        """Take a generation off all hosts as far as they answer.

        Args:
            plan: that of the generation.
            generation: whose node models go.
            by: plan and generation whose nodes are asked to delete the files, where they are.
        """
        speakers = self.nodes(by[0])
        for address, nodes in self.nodes(plan).items():
            names = [node_model(node, generation) for node in nodes]
            speaker = node_model(speakers[address][0], by[1]) if address in speakers else names[0]
            self._remove(address, names, speaker)

    def tidy(self, plan: Plan, generation: int) -> None:
        """Take off what belongs to any other generation than the one in force."""
        in_force = self.nodes(plan)
        for address in sorted(set(self.addresses.values())):
            with contextlib.suppress(PoolPipeError):
                index = cast("Any", self.at(address).post("/v2/repository/index", {}))
                names = [entry["name"] for entry in index]
                old = [n for n in names if node_generation(n) not in {None, generation}]
                if old:
                    speaker = in_force.get(address)
                    by = old[0] if speaker is None else node_model(speaker[0], generation)
                    self._remove(address, old, by)

    def _remove(self, address: str, names: list[str], speaker: str) -> None:
        """Files first, because the speaker may be among those that are unloaded."""
        there = self.at(address)
        with contextlib.suppress(ServerError):
            there.ask(speaker, {"command": "remove_models", "models": names})
            for name in names:
                there.unload(name)


def artifacts_on(plan: Plan, nodes: Iterable[str]) -> list[str]:
    """Names of the artifacts that a plan's stages run on some of its nodes."""
    numbers = {plan.cluster.node_index(node) for node in nodes}
    pools = {vgpu.pool for vgpu in plan.vgpus() if vgpu.slot.node in numbers}
    found = {stage.artifact for pool in pools for stage in plan.stages_of(pool)}
    return sorted(name for name in found if name is not None)


def find_missing(
    there: ServerState, speaker: str, wanted: list[str], root: Path | None
) -> MissingArtifacts | None:
    """What a host lacks of what it needs; None where nothing.

    Args:
        there: the host's Triton.
        speaker: a node model that runs there.
        wanted: artifacts it needs.
        root: the artifacts of this host, from which they can be sent.

    Raises:
        InputError: an artifact is neither there nor here.
        ServerError: the host does not answer.
    """
    if not wanted:
        return None
    said = there.ask(speaker, {"command": "missing_artifacts", "artifacts": wanted})
    for name in said["artifacts"]:
        if said["root"] is None:
            raise InputError(f"host {there.http_url}", "was started without a folder of artifacts")
        if root is None or not (root / name / MANIFEST_NAME).is_file():
            raise InputError(
                f"host {there.http_url}",
                f"lacks artifact {name} in {said['root']}, and {root} here has none to send",
            )
    found = tuple(said["artifacts"])
    return MissingArtifacts(there=there, speaker=speaker, artifacts=found) if found else None


def send_artifacts(missing: MissingArtifacts, root: Path) -> None:
    """Send what a host lacks.

    Raises:
        ServerError: it refuses, or does not answer.
    """
    for name in missing.artifacts:
        files = sorted(path for path in (root / name).iterdir() if path.is_file())
        for path in files:
            with path.open("rb") as file:
                offset = 0
                # An empty file is a piece too.
                while (piece := file.read(PIECE_BYTES)) or offset == 0:
                    data = base64.b64encode(piece).decode()
                    part = {"file": path.name, "offset": offset, "data": data}
                    missing.there.ask(
                        missing.speaker, {"command": "put_artifact", "artifact": name, **part}
                    )
                    offset += max(len(piece), 1)
        digests = {path.name: _digest(path) for path in files}
        missing.there.ask(
            missing.speaker, {"command": "put_artifact", "artifact": name, "digests": digests}
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
