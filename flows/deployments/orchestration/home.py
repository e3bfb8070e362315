"""Prefect's state folder and the access to its server, set before it is first imported.

Everything lies in the project's own folder, nothing is reported to anybody, and a server that
starts on a busy two-core machine gets the time it needs. What the environment says already wins,
so that a shared server (`PREFECT_API_URL`) is used unchanged.

The API of a server has workers run code. A server that is started from here therefore refuses every
request without the project's own credentials (a random word, made once), gives the page of another
origin no answer to read, and takes no change without a CSRF token. The credentials are in the
profile of Prefect's folder, which only the user may read; the command `prefect` finds them there.
"""

import os
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import is_loopback

STARTUP_SECONDS = 120
PROFILES, PROFILE = "profiles.toml", "poolpipe"
NO_PAGE = "http://127.0.0.1"  # where the server has no page: an origin that none of ours has
_AUTH, _SERVER_AUTH = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
_TEXT = f"""# The credentials of this project's own Prefect server, whose workers run code.
# Keep them secret.
{{active}}[profiles.{PROFILE}]
{_AUTH} = "{{auth}}"
PREFECT_SERVER_EPHEMERAL_ENABLED = "true"
"""


def prepare_prefect(home: Path, *, origin: str = NO_PAGE) -> None:
    """Set Prefect's environment for this process and those it starts.

    Args:
        home: Prefect's folder of the project; made where it is missing.
        origin: of the page that a server started from here may answer.

    Raises:
        InputError: the credentials there cannot be read.
    """
    home.mkdir(parents=True, exist_ok=True)
    auth = _credentials(home)
    defaults = {
        "PREFECT_HOME": str(home.resolve()),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(STARTUP_SECONDS),
        "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the command says itself what failed
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origin,
        **_own_credentials(os.environ, auth),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _own_credentials(environment: Mapping[str, str], auth: str) -> dict[str, str]:
    """Our credentials for a server on this machine.

    For another one none but what the environment says.
    """
    url = environment.get("PREFECT_API_URL")
    if url and ("PREFECT_API_KEY" in environment or not is_loopback(urlsplit(url).hostname or "")):
        return {"PREFECT_PROFILE": "ephemeral"}  # Prefect's own default: not the one that has them
    known = environment.get(_AUTH, auth)
    return {_AUTH: known, _SERVER_AUTH: known}


def _credentials(home: Path) -> str:
    """Name and word of the project's server, made where there are none."""
    path = home / PROFILES
    try:
        text = path.read_text() if path.exists() else ""
        auth = _auth_in(text)
        if auth is None:
            auth = f"{PROFILE}:{secrets.token_urlsafe(32)}"
            if not _write(path, _with_auth(text, auth), over=bool(text)):
                return _credentials(home)  # of another process that was faster
        path.chmod(0o600)
    except OSError as error:
        raise InputError(str(path), f"cannot be used: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise InputError(str(path), f"not Prefect's profiles: {error}") from error
    return str(auth)


def _auth_in(text: str) -> str | None:
    """The credentials of our profile in a file of profiles."""
    return tomllib.loads(text).get("profiles", {}).get(PROFILE, {}).get(_AUTH)


def _with_auth(text: str, auth: str) -> str:
    """A file of profiles with credentials in ours, which may be there without them.

    Raises:
        ValueError: they cannot be put there.
    """
    header = f"[profiles.{PROFILE}]\n"
    if header in text:
        found = text.replace(header, f'{header}{_AUTH} = "{auth}"\n', 1)
    else:
        active = "" if text else f'active = "{PROFILE}"\n\n'
        found = text + _TEXT.format(active=active, auth=auth)
    if _auth_in(found) != auth:
        message = f"the profile {PROFILE!r} has no {_AUTH}"
        raise ValueError(message)
    return found


def _write(path: Path, text: str, *, over: bool) -> bool:
    """Write a file whole, for the user alone from the first byte on.

    False: there is one, and it stays.
    """
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as private:
        unfinished = Path(private) / path.name
        unfinished.write_text(text)
        unfinished.chmod(0o600)
        if over:
            unfinished.replace(path)
            return True
        try:
            path.hardlink_to(unfinished)
        except FileExistsError:
            return False
    return True


def prepare_server() -> None:
    """Set what a server started from here needs to survive being killed.

    Leases on limits outlive it (limits would stay taken for ever otherwise); a process that waits
    for a deployment's turn looks again every few seconds.
    """
    defaults = {
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_CONCURRENCY_INITIAL_DEPLOYMENT_LEASE_DURATION": "60",
        "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
