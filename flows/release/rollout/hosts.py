"""The other hosts of a running system in a rollout: each node's files, loads and unloads there.

Every host runs a Triton of its own with the nodes that are there. Its repository API is reached at
the host's address (`hosts` of the settings) and port (`host_http_port`), with the system's token.
Files are written by a node that runs there already (`triton_backend.serving.node.remote_generations`).
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from flows.release.render.repository import node_generation, node_model, used_nodes
from flows.release.rollout.artifact_supply import Lack, artifacts_on, find_lack, send
from flows.release.server.running import ServerError, ServerState
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan


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
        settings = json.loads((gateway.folder / "settings.json").read_text())
        artifacts = settings.get("artifacts")
        return cls(
            gateway,
            settings["hosts"],
            settings["host_http_port"],
            settings["gateway_host"],
            None if artifacts is None else Path(artifacts),
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

    def lacks(self, old: Plan, old_generation: int, new: Plan) -> list[Lack]:
        """Artifacts that hosts lack for a plan and that can be sent to them.

        Raises:
            InputError: a host lacks one that is not here either.
            ServerError: a host does not answer.
        """
        speakers = self.nodes(old)
        found = (
            find_lack(
                self.at(address),
                node_model(speakers[address][0], old_generation),
                artifacts_on(new, nodes),
                self.artifacts,
            )
            for address, nodes in self.nodes(new).items()
        )
        return [lack for lack in found if lack is not None]

    def adopt(self, old: Plan, old_generation: int, new: Plan, generation: int) -> None:
        """Send what hosts lack, and write the new generation's files on all that have a part in it.

        Raises:
            InputError: as `lacks`.
            ServerError: a host does not answer, or refuses.
        """
        for lack in self.lacks(old, old_generation, new):
            assert self.artifacts is not None  # what is lacking was found there
            send(lack, self.artifacts)
        speakers = self.nodes(old)
        for address, nodes in self.nodes(new).items():
            self.at(address).ask(
                node_model(speakers[address][0], old_generation),
                {
                    "command": "adopt",
                    "generation": generation,
                    "plan": new.to_dict(),
                    "models": {node_model(node, generation): node for node in nodes},
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

    def leave(self, plan: Plan, generation: int, by: tuple[Plan, int]) -> None:
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
            there.ask(speaker, {"command": "forget", "models": names})
            for name in names:
                there.unload(name)
