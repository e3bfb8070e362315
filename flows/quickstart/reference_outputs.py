"""What the unsplit model answers, so that every response of the served one can be checked."""

from pathlib import Path

import numpy as np

from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.running import open_session, random_inputs, run_session

SAMPLES = 16
SEED = 77


def write_answers(split: SplitModel, path: Path) -> Path:
    """Random inputs and the whole model's outputs as an `.npz` for `load --check`.

    Arrays are `inputs/<tensor>` and `outputs/<tensor>`, each [16, ...].
    """
    rng = np.random.default_rng(SEED)
    session = open_session(split.model_path, str(split.model_path))
    inputs = random_inputs(split.inputs, SAMPLES, rng)
    # One sample at a time: nothing of the batching that is under test takes part.
    answers = [
        run_session(session, {name: array[i : i + 1] for name, array in inputs.items()})
        for i in range(SAMPLES)
    ]
    arrays = {f"inputs/{name}": array for name, array in inputs.items()}
    for spec in split.outputs:
        arrays[f"outputs/{spec.name}"] = np.concatenate([a[spec.name] for a in answers])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
