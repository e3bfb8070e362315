"""A PyTriton program with a model of its own, as a user writes it; run by `test_attach.py`.

    python attached_program.py PLAN HTTP_PORT GRPC_PORT METRICS_PORT

It writes its model repository to `ready` when both are served, and ends when its standard input
does.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from triton_backend import attach


@batch
def double(number: Any) -> list[Any]:
    """Its own model."""
    return [2 * number]


def main() -> None:
    """Serve until told to end."""
    http, grpc, metrics = map(int, sys.argv[2:])
    ports = TritonConfig.from_dict({"http_port": http, "grpc_port": grpc, "metrics_port": metrics})
    config = attach(Path(sys.argv[1]), ports)
    triton = Triton(config=config)
    given, doubled = (Tensor(name=n, dtype=np.float32, shape=(1,)) for n in ("number", "doubled"))
    triton.bind("double", double, [given], [doubled], config=ModelConfig(max_batch_size=4))
    triton.run()
    Path("ready").write_text(str(config.model_repository))
    sys.stdin.read()
    triton.stop()


if __name__ == "__main__":
    main()
