"""Models whose stubs died, loaded again: Triton does not notice.

Each load has a thread of its own, so that one that takes long hides no other death.
"""

import logging
import re
import threading
from pathlib import Path

from triton_backend.serve_folder.files import write_whole
from triton_backend.serve_folder.names import RESERVED_PREFIX
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serve_folder.versions import mark_changed, model_of_process
from triton_backend.serving.server.api import HTTP_OK, TritonApi
from triton_backend.serving.transport.backoff import Backoff

# Of a model that cannot be loaded again, for want of memory or of room on a disk.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0
_LOG = logging.getLogger(__name__)


class ModelReloads:
    """Reloads models whose stubs died, each in a thread of its own."""

    def __init__(self, settings: ServeSettings, api: TritonApi) -> None:
        self._repository = settings.place / "repository"
        self._api = api
        self._threads: dict[str, threading.Thread] = {}
        self._retries: dict[str, Backoff] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Try no failed load again."""
        self._stopping.set()

    def begin(self, file: Path) -> None:
        """Reload a model, unless it is being loaded; `file` is that of its dead stub.

        A load that fails (no memory, a full disk) is tried again with the next call after a pause;
        the file stays until the new process writes its own.
        """
        running = self._threads.get(file.name)
        if running is None or not running.is_alive():
            thread = threading.Thread(target=self._reload, args=(file,), daemon=True)
            self._threads[file.name] = thread
            thread.start()

    def is_loading(self, model: str) -> bool:
        """True if a model is being reloaded."""
        thread = self._threads.get(model)
        return thread is not None and thread.is_alive()

    def _reload(self, file: Path) -> None:
        retry = self._retries.setdefault(
            file.name, Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        )
        if not retry.failures:
            _LOG.warning("%s is reloaded", file.name)
        try:
            failure = self._load(file)
        except Exception as error:  # noqa: BLE001  # of this thread alone; it is tried again
            failure = repr(error)
        if failure is None:
            retry.succeeded()
            return
        pause_s = retry.failed()
        if retry.failures == 1:
            _LOG.warning("%s was not loaded, tried again until it is: %s", file.name, failure)
        self._stopping.wait(pause_s)

    def _load(self, file: Path) -> str | None:
        """Load a model again, once; why it was not loaded, if so."""
        model, version = model_of_process(file.name)
        if version is not None:
            return self._load_version(file, model, version)
        if not model.startswith(RESERVED_PREFIX):
            # Until the new process is there, refuse what the dead one would never answer.
            self._api.unload(model)
        config = self._repository / model / "config.pbtxt"
        try:
            text = config.read_text()
        except OSError:  # a rollout took it away
            file.unlink(missing_ok=True)
            return None
        # An unchanged configuration is not loaded again.
        text = re.sub(
            r'(key: "restart"[^"]*string_value: ")(\d+)',
            lambda match: f"{match[1]}{int(match[2]) + 1}",
            text,
        )
        try:
            write_whole(config, text)
        except OSError as error:
            return str(error)
        code = self._api.load(model)
        return None if code == HTTP_OK else f"HTTP {code}"

    def _load_version(self, file: Path, model: str, version: int) -> str | None:
        """The same for one version of a model; the others serve on."""
        try:
            mark_changed(self._repository / model, version)
        except FileNotFoundError:  # a rollout took it away
            file.unlink(missing_ok=True)
            return None
        except OSError as error:
            return str(error)
        code = self._api.load(model)
        return None if code == HTTP_OK else f"HTTP {code}"
