"""The state file that a keeper leaves when it is killed with its server."""

from typing import Any

NO_PROCESS = 2**22 + 1  # above Linux's largest process number

LEFT: dict[str, Any] = {
    **dict.fromkeys(("pid", "triton_pid", "process_group"), NO_PROCESS),
    **dict.fromkeys(("instance", "folder", "socket_folder", "token", "token_header"), "gone"),
    **dict.fromkeys(("address", "http_address", "grpc_address"), "127.0.0.1"),
    "arguments": ["gone"],
    "ready": True,
    "ports": {"http": 8000, "grpc": 8001, "metrics": 8002},
}
