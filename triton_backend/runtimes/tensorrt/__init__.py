"""TensorRT: the library, engines on the GPU, the runtime of a stage."""
