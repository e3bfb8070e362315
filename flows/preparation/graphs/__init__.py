"""ONNX models made here: examples with seeded weights, small graphs between modules."""
