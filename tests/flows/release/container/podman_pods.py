"""Pods of rendered manifests as podman's: what a kubelet would start, on this machine.

Podman's own `kube play` (4.3) knows neither StatefulSets nor volumes of secrets, so each field of a
pod that is rendered is put into podman's words here. A field that this file does not know is an
error, not left out.
"""

import contextlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

import pytest

NEEDED = ("podman", "runc", "catatonit", "iptables")
# Podman asks for limits that a process without CAP_SYS_RESOURCE may not set: this process's stay.
RUNTIME = """#!/usr/bin/env python3
import json, os, sys

words = sys.argv[1:]
for flag, file in (("--bundle", "config.json"), ("--process", None)):
    if flag in words:
        path = words[words.index(flag) + 1]
        path = os.path.join(path, file) if file else path
        with open(path) as stream:
            given = json.load(stream)
        given.get("process", given).pop("rlimits", None)
        with open(path, "w") as stream:
            json.dump(given, stream)
os.execvp("runc", ["runc", *words])
"""
CONFIGURATION = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "plain"
[engine.runtimes]
plain = ["{folder}/runtime"]
[network]
network_config_dir = "{folder}/networks"
"""
POD_FIELDS = {
    *("automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace", "volumes"),
    *("securityContext", "terminationGracePeriodSeconds", "nodeSelector", "affinity", "containers"),
}
CONTAINER_FIELDS = {
    *("name", "image", "args", "env", "ports", "resources", "securityContext", "volumeMounts"),
    *("startupProbe", "readinessProbe", "livenessProbe"),
}
USER = 1000
COMMAND_SECONDS = 120


def podman_or_reason() -> str | None:
    """The reason why no pod can be started here, in one line."""
    if os.geteuid() != 0:
        return "pods are started by root only"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install -y {' '.join(NEEDED)}"
    return None


def need_podman() -> None:
    """Skip the test where there is no podman; in CI that is a failure."""
    reason = podman_or_reason()
    if reason is not None and os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    if reason is not None:
        pytest.skip(reason)


@dataclass(frozen=True)
class Podman:
    """Podman with images, containers and networks of its own below a folder."""

    folder: Path

    def set_up(self) -> None:
        """Write its configuration."""
        (self.folder / "networks").mkdir(parents=True)
        runtime = self.folder / "runtime"
        runtime.write_text(RUNTIME)
        runtime.chmod(0o755)
        self._configuration.write_text(CONFIGURATION.format(folder=self.folder))

    def run(self, *words: str | Path) -> str:
        """Its answer.

        Raises:
            RuntimeError: it failed; with the last of what it said.
        """
        done = self._done(*words)
        if done.returncode != 0:
            raise RuntimeError(f"podman {' '.join(map(str, words))}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def all_of(self, *words: str | Path) -> str:
        """Its answer and what it says beside it."""
        done = self._done(*words)
        return done.stdout + done.stderr

    def succeeds(self, *words: str | Path) -> bool:
        """True if it did what it was asked for."""
        return self._done(*words).returncode == 0

    @contextlib.contextmanager
    def importing(self, image: str, environment: dict[str, str]) -> Generator[IO[bytes]]:
        """A stream that takes the root folder of an image as a tar file."""
        changes = [f"--change=ENV {name}={value}" for name, value in environment.items()]
        command, variables = self._command("import", "--quiet", *changes, "-", image)
        with subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as process:
            assert process.stdin is not None
            yield process.stdin
        assert process.returncode == 0, f"podman import {image}"

    def _done(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command, variables = self._command(*words)
        return subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )

    def _command(self, *words: str | Path) -> tuple[list[str], dict[str, str]]:
        roots = ("--root", self.folder / "images", "--runroot", self.folder / "run")
        variables = {**os.environ, "CONTAINERS_CONF": str(self._configuration)}
        return ["podman", *map(str, roots), *map(str, words)], variables

    def tear_down(self, network: str) -> None:
        """End pods and network; the folder can be deleted then."""
        for words in (
            ("pod", "rm", "--all", "--force", "--time", "0"),
            ("network", "rm", "--force", network),
            ("image", "rm", "--all", "--force"),
        ):
            self.succeeds(*words)
        self.remove_volumes("*")
        inside = [self.folder / "images" / "overlay", self.folder / "run"]
        subprocess.run(["umount", *filter(Path.is_mount, inside)], check=False, capture_output=True)

    def remove_volumes(self, pods: str) -> None:
        """Remove the volumes of the pods whose names match."""
        memory = [place for place in self.volumes.glob(f"{pods}/*") if place.is_mount()]
        if memory:
            subprocess.run(["umount", *memory], check=True)
        for place in self.volumes.glob(pods):
            shutil.rmtree(place)

    @property
    def volumes(self) -> Path:
        """Volumes, by pod and name."""
        return self.folder / "volumes"

    @property
    def _configuration(self) -> Path:
        return self.folder / "containers.conf"


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of a StatefulSet.

    Attributes:
        name: of the pod.
        spec: of its template, as rendered.
        address: of the pod, on the network.
        hosts: addresses of all pods by the name that the cluster's DNS would know them under.
        secrets: files of each secret.
    """

    podman: Podman
    network: str
    name: str
    spec: dict[str, Any]
    address: str
    hosts: dict[str, str]
    secrets: dict[str, dict[str, bytes]]

    @property
    def container(self) -> str:
        """Podman's name of the only container."""
        return f"{self.name}-{self.spec['containers'][0]['name']}"

    def start(self) -> None:
        """Make the pod and start its container, which is started again whenever it ends."""
        assert set(self.spec) <= POD_FIELDS, set(self.spec) - POD_FIELDS
        (container,) = self.spec["containers"]
        assert set(container) <= CONTAINER_FIELDS, set(container) - CONTAINER_FIELDS
        names = [f"--add-host={name}:{address}" for name, address in self.hosts.items()]
        shared = "net,uts,ipc,pid" if self.spec["shareProcessNamespace"] else "net,uts,ipc"
        place = ("--network", self.network, "--ip", self.address, "--hostname", self.name)
        self.podman.run("pod", "create", "--name", self.name, "--share", shared, *place, *names)
        words = [
            *("run", "--detach", "--pod", self.name, "--name", self.container),
            *("--restart", "always", "--stop-timeout"),
            str(self.spec["terminationGracePeriodSeconds"]),
            *self._security(container["securityContext"]),
            *self._environment(container["env"]),
            *self._mounts(container["volumeMounts"]),
            *("--memory", container["resources"]["limits"]["memory"].removesuffix("i").lower()),
        ]
        arguments = [one.replace("$(POD_NAME)", self.name) for one in container["args"]]
        self.podman.run(*words, container["image"], *arguments)

    def remove(self) -> None:
        """End the pod at once; its volumes go with it."""
        self.podman.run("pod", "rm", "--force", "--time", "0", self.name)
        self.podman.remove_volumes(self.name)

    def is_ready(self) -> bool:
        """Ask as the readiness probe does: inside the container, or by HTTP from outside."""
        (container,) = self.spec["containers"]
        probe = container["readinessProbe"]
        if "exec" in probe:
            return self.podman.succeeds("exec", self.container, *probe["exec"]["command"])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = probe["httpGet"]
        url = f"http://{self.address}:{ports[asked['port']]}{asked['path']}"
        try:
            with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
                return answer.status == HTTPStatus.OK
        except OSError:
            return False

    def first_process(self) -> int:
        """The container's first process, as this machine numbers it."""
        return int(self.podman.run("inspect", "--format", "{{.State.Pid}}", self.container))

    def log(self) -> str:
        """The last lines of its log."""
        return self.podman.all_of("logs", "--tail", "20", self.container)

    def _security(self, context: dict[str, Any]) -> list[str]:
        assert context == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        pod = self.spec["securityContext"]
        assert pod == {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        user = ["--user", f"{USER}:{USER}"]
        closed = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all"]
        return [*user, *closed, "--security-opt=no-new-privileges"]

    def _environment(self, given: list[dict[str, Any]]) -> list[str]:
        found: dict[str, str] = {}
        for one in given:
            source = one.get("valueFrom", {"fieldRef": {"fieldPath": "metadata.name"}})
            assert source == {"fieldRef": {"fieldPath": "metadata.name"}}
            found[one["name"]] = one.get("value", self.name)
        return [f"--env={name}={value}" for name, value in found.items()]

    def _mounts(self, given: list[dict[str, Any]]) -> list[str]:
        volumes = {one["name"]: one for one in self.spec["volumes"]}
        found: list[str] = []
        for mount in given:
            volume, target = volumes[mount["name"]], mount["mountPath"]
            place = self.podman.volumes / self.name / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                for name, content in self.secrets[volume["secret"]["secretName"]].items():
                    (place / name).write_bytes(content)
                    os.chown(place / name, 0, USER)
                    (place / name).chmod(volume["secret"]["defaultMode"])
            elif volume["emptyDir"].get("medium") == "Memory":
                size = volume["emptyDir"]["sizeLimit"].removesuffix("i").lower()
                options = f"size={size},mode=2777,gid={USER}"  # as fsGroup says; the user is root
                subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
            else:
                place /= mount.get("subPath", "")
                place.mkdir(exist_ok=True)
                os.chown(place, 0, USER)
                place.chmod(0o2777)
            found.append(f"--volume={place}:{target}{':ro' if mount.get('readOnly') else ''}")
        return found


def pods_of(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Specifications of the pods that StatefulSets make, by the names that DNS has for them."""
    found: dict[str, dict[str, Any]] = {}
    for item in documents:
        if item["kind"] == "StatefulSet":
            spec = item["spec"]
            for ordinal in range(spec["replicas"]):
                name = f"{item['metadata']['name']}-{ordinal}.{spec['serviceName']}"
                found[name] = json.loads(json.dumps(spec["template"]["spec"]))
    return found
