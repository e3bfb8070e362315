"""From stage files to TensorRT engines."""
