"""From one ONNX model to blocks, boundaries and stage files."""

from flows.preparation.splitting.checking import SplitCheck, check_split
from flows.preparation.splitting.extracting import extract_stage, extract_stages
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.split import SplitChoices, split_model

__all__ = [
    "SplitCheck",
    "SplitChoices",
    "SplitModel",
    "check_split",
    "extract_stage",
    "extract_stages",
    "split_model",
]
