"""From an ONNX model to blocks and stage files."""
