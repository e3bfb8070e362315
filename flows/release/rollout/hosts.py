"""The other hosts of a running system in a rollout: each node's files, loads and unloads there.

Every host runs a Triton of its own with the nodes that are there. Its repository API is reached at
the host's address (`hosts` of the settings) and port (`host_http_port`), with the system's token.
Files are written by a node that runs there already, and artifacts that the host lacks are found
before anything is changed and sent to it (the other end is
`triton_backend/serving/node/remote_files.py`).
"""

import base64
import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from flows.release.server.running import RefusedError, ServerError, ServerState
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.serve_folder.repository import (
    GenerationNames,
    is_node_model,
    node_model,
    used_nodes,
)
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingArtifacts:
    """The files missing on a host, and the node model to ask there."""

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
        """Check that a plan can follow another one without a restart.

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

    def missing_artifacts(self, old: Plan, new: Plan) -> list[MissingArtifacts]:
        """Artifacts that hosts lack for a plan and that can be sent to them.

        Raises:
            InputError: a host lacks one that is not here either.
            ServerError: a host does not answer.
        """
        speakers = self.nodes(old)
        found = (
            find_missing(
                self.at(address),
                node_model(speakers[address][0]),
                artifacts_on(new, nodes),
                self.artifacts,
            )
            for address, nodes in self.nodes(new).items()
        )
        return [missing for missing in found if missing is not None]

    def put_generation(self, old: Plan, new: Plan, generation: int, names: GenerationNames) -> None:
        """Send what hosts lack, and write the new generation's files on all that have a part in it.

        Raises:
            InputError: as `missing_artifacts`.
            ServerError: a host does not answer, or refuses.
        """
        for missing in self.missing_artifacts(old, new):
            assert self.artifacts is not None  # missing files were found there
            send_artifacts(missing, self.artifacts)
        speakers = self.nodes(old)
        for address, nodes in self.nodes(new).items():
            self.at(address).ask(
                node_model(speakers[address][0]),
                {
                    "command": "put_generation",
                    "generation": generation,
                    "plan": new.to_dict(),
                    "nodes": nodes,
                    "front_ports": dict(names.ports),
                    "workers": names.workers.to_dict(),
                },
            )

    def begin(self, old: Plan, new: Plan, generations: tuple[int, int]) -> None:
        """Have the nodes of the new plan begin its generation, beside the old one's.

        Its workers start.

        Raises:
            ServerError: a host refuses or does not answer.
        """
        known = self.nodes(old)
        for address, nodes in self.nodes(new).items():
            there, speaker = self.at(address), node_model(known[address][0])
            for node in nodes:
                kept = node in known[address]
                _serve(there, speaker, [node], generations if kept else generations[1:])
                if kept:
                    have_look(there, node)
                else:
                    there.load(node_model(node))

    def end(self, over: Plan, kept: Plan, generation: int) -> None:
        """Take a plan off all hosts as far as they answer.

        Args:
            over: that plan.
            kept: the plan in force.
            generation: of that.
        """
        in_force = self.nodes(kept)
        for address, nodes in self.nodes(over).items():
            stay = in_force.get(address, [])
            self._keep(address, stay, [node_model(n) for n in nodes if n not in stay], generation)

    def tidy(self, plan: Plan, generation: int) -> None:
        """Take off what belongs to any other generation than the one in force."""
        in_force = self.nodes(plan)
        for address in sorted(set(self.addresses.values())):
            stay = in_force.get(address, [])
            with contextlib.suppress(PoolPipeError):
                index = cast("Any", self.at(address).post("/v2/repository/index", {}))
                names = {entry["name"] for entry in index if is_node_model(entry["name"])}
                gone = sorted(names - set(map(node_model, stay)))
                self._keep(address, stay, gone, generation)

    def _keep(self, address: str, stay: list[str], gone: list[str], generation: int) -> None:
        """Reduce a host's nodes to one generation and unload the models of the others."""
        there = self.at(address)
        speakers = [*map(node_model, stay), *gone]
        with contextlib.suppress(ServerError):
            # Files first, because the speaker may be among those that are unloaded.
            if gone:
                there.ask(speakers[0], {"command": "remove_models", "models": gone})
            if stay:
                _serve(there, speakers[0], stay, [generation])
            for node in stay:
                have_look(there, node)
            for name in gone:
                there.unload(name)


def have_look(there: ServerState, node: str) -> None:
    """Have a node begin and end generations now, as was written for it.

    One that is being reloaded does so by itself.

    Raises:
        RefusedError: it cannot begin one.
    """
    try:
        there.ask(node_model(node), {"command": "look"})
    except RefusedError:
        raise
    except ServerError:
        pass


def _serve(
    there: ServerState, speaker: str, nodes: Iterable[str], generations: Iterable[int]
) -> None:
    """Write which generations nodes of a host have."""
    fields = {"nodes": list(nodes), "generations": list(generations)}
    there.ask(speaker, {"command": "serve_generations", **fields})


def artifacts_on(plan: Plan, nodes: Iterable[str]) -> list[str]:
    """Names of the artifacts that a plan's stages run on some of its nodes."""
    numbers = {plan.cluster.node_index(node) for node in nodes}
    pools = {vgpu.pool for vgpu in plan.vgpus() if vgpu.slot.node in numbers}
    found = {stage.artifact for pool in pools for stage in plan.stages_of(pool)}
    return sorted(name for name in found if name is not None)


def find_missing(
    there: ServerState, speaker: str, wanted: list[str], root: Path | None
) -> MissingArtifacts | None:
    """The files that a host lacks; None if it has all.

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
