"""Checks the access control of the Prefect server: a client of its API can have a worker run code.

It is asked over HTTP like any page or user would, without the project's credentials.
"""

import json
import os
import stat
import urllib.request
from collections.abc import Iterator, Mapping
from urllib.error import HTTPError

from flows.operations.doctor.registry import Finding, Surroundings, check, good, problem

ANSWER_SECONDS = 5.0
FOREIGN = "http://page.invalid"
START_AGAIN = "`scripts/operations down`, then `up`; a server of your own: "
MISSING_CSRF = 403


@check("Prefect server")
def prefect_server(at: Surroundings) -> Iterator[Finding]:
    """The API runs code by its workers: it asks for credentials and refuses other origins."""
    profiles = at.state.prefect / "profiles.toml"
    if profiles.exists() and stat.S_IMODE(profiles.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        yield problem(f"{profiles} holds its credentials", f"chmod 600 {profiles}")
    port = os.environ.get("POOLPIPE_PREFECT_PORT") or "4200"
    url = os.environ.get("PREFECT_API_URL") or f"http://127.0.0.1:{port}/api"
    try:
        _ask(f"{url}/health")
        open_to_all = _ask(f"{url}/admin/version")[0] == 200  # noqa: PLR2004 - HTTP's OK
        headers = {"Origin": FOREIGN, "Access-Control-Request-Method": "POST"}
        allowed = _ask(f"{url}/flows/count", "OPTIONS", headers)[1]
        without_token = _ask(f"{url}/flows/count", "POST", {})[0] != MISSING_CSRF
    except (OSError, ValueError) as error:
        yield good(f"none answers at {url} ({error})")
        return
    if open_to_all:
        remedy = f"{START_AGAIN}PREFECT_SERVER_API_AUTH_STRING"
        yield problem(f"{url} answers without credentials", remedy)
    if allowed in {"*", FOREIGN}:
        remedy = f"{START_AGAIN}PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
        yield problem(f"{url} answers the pages of every origin", remedy)
    if without_token:
        remedy = f"{START_AGAIN}PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true"
        yield problem(f"{url} takes changes without a CSRF token", remedy)
    if not (open_to_all or allowed in {"*", FOREIGN} or without_token):
        yield good(f"{url} asks for credentials and a CSRF token, and answers no other origin")


def _ask(
    url: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, str | None]:
    """Status, and the origin whose pages may read the answer."""
    request = urllib.request.Request(  # noqa: S310 - our own server, or the one the user names
        url,
        method=method,
        data=json.dumps({}).encode() if method == "POST" else None,
        headers={"Content-Type": "application/json"} | dict(headers or {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - as above
            return answer.status, answer.headers.get("Access-Control-Allow-Origin")
    except HTTPError as error:
        with error:
            return error.code, error.headers.get("Access-Control-Allow-Origin")
