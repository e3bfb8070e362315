"""From an ONNX file to measured cells."""
