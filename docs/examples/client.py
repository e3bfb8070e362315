"""Ask a served model once, with a deadline: `python client.py MODEL [URL] [DEADLINE_MS]`."""

import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

model = sys.argv[1]
url = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:8001"
deadline_ms = float(sys.argv[3]) if len(sys.argv) > 3 else 1000.0

client = triton.InferenceServerClient(url)
try:
    inputs = []
    for tensor in client.get_model_metadata(model).inputs:
        shape = [1 if size == -1 else size for size in tensor.shape]
        zeros = np.zeros(shape, triton_to_np_dtype(tensor.datatype))
        given = triton.InferInput(tensor.name, shape, tensor.datatype)
        inputs.append(given.set_data_from_numpy(zeros))
    # `timeout` is the deadline in µs, which the server plans by; `client_timeout` ends the wait,
    # in seconds, if a front end dies with the request.
    answer = client.infer(
        model, inputs, timeout=int(deadline_ms * 1000), client_timeout=deadline_ms / 1000 + 0.1
    )
except InferenceServerException as error:
    sys.exit(f"{error.status()}: {error.message()}")
for output in answer.get_response().outputs:
    print(output.name, answer.as_numpy(output.name).shape)
