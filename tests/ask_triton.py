"""Triton's own client asks a server: {"url", "pixels", "values"} come from standard input."""

import json
import sys

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException


def main() -> None:
    given = json.load(sys.stdin)
    pixels, expected = np.array(given["pixels"], np.uint8), np.array(given["values"])
    client = http.InferenceServerClient(given["url"], concurrency=4)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits")
    assert not client.is_model_ready("cats") and not client.is_model_ready("digits", "2")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    inputs = {one["name"]: one for one in client.get_model_metadata("digits")["inputs"]}
    assert inputs["pixels"]["shape"] == [-1, *pixels.shape[1:]]

    for binary in (True, False):
        tensor = http.InferInput("pixels", pixels.shape, "UINT8")
        tensor.set_data_from_numpy(pixels, binary_data=binary)
        wanted = [http.InferRequestedOutput(name, binary_data=binary) for name in ("label", "probabilities")]
        for outputs in (None, wanted):
            said = client.infer("digits", [tensor], outputs=outputs, request_id="7", model_version="1")
            assert np.abs(said.as_numpy("probabilities") - expected).max() < 1e-5 and said.get_response()["id"] == "7"
            assert said.as_numpy("label").shape == (len(pixels),)

    asked = [client.async_infer("digits", [tensor], timeout=30_000_000) for _ in range(20)]
    assert all(np.abs(one.get_result().as_numpy("probabilities") - expected).max() < 1e-5 for one in asked)

    wrong = http.InferInput("pixels", [1, 3], "UINT8")
    wrong.set_data_from_numpy(np.zeros((1, 3), np.uint8))
    try:
        client.infer("digits", [wrong])
        raise SystemExit("it took a wrong shape")
    except InferenceServerException as error:
        assert "pixels has the shape" in str(error)
    client.close()
    print("content")


if __name__ == "__main__":
    main()
