"""The same model behind LitServe, for benchmarks/serve.py.     serve_litserve.py MODEL PORT BATCH TIMEOUT WORKERS"""

import base64
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import torch

from vitral import Classifier
from vitral.graph import GRAPHS, GraphModel


class Api(litserve.LitAPI):  # type: ignore[misc]
    """As its guide has it: bodies are decoded in the worker, which asks about them in batches."""

    def __init__(self, source: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.source = source

    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        graph = Path(self.source).suffix in GRAPHS
        opened = GraphModel.read(Path(self.source), threads=1) if graph else None
        self.classifier = Classifier(opened) if opened else Classifier.load(self.source)

    def decode_request(self, request) -> Any:  # with a type it would be taken for a query
        return self.classifier.preprocess.resized(base64.b64decode(request["image"]))

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, pixels: Any) -> Any:
        return self.classifier.inference.answers(pixels)[0]

    def unbatch(self, values: Any) -> list[Any]:
        return list(values)

    def encode_response(self, values: Any) -> dict[str, Any]:
        names = self.classifier.class_names
        best = (-values).argsort()[:3]
        return {"probabilities": [{"label": names[one], "probability": float(values[one])} for one in best]}


if __name__ == "__main__":
    source, port, batch, timeout, workers = sys.argv[1:]
    api = Api(source, max_batch_size=int(batch), batch_timeout=float(timeout))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers), timeout=False)
    server.run(port=int(port), host="127.0.0.1", generate_client_file=False, log_level="error")
