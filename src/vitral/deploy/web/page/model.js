// The model, in onnxruntime-web: pixels become what it says of a picture.

import * as ort from "ort";

/** The bytes of a part of this page: in it (compressed, as text), or a file beside it. */
async function bytesOf(id) {
  const part = document.getElementById(id);
  if (part.dataset.from) {
    const answer = await fetch(part.dataset.from).catch(() => null);
    if (!answer?.ok) throw new Error(`${part.dataset.from} could not be fetched. Is there a network? Open the page once more.`);
    return new Uint8Array(await answer.arrayBuffer());
  }
  const text = part.textContent;
  part.remove(); // it is long, and not needed any more
  const packed = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0)); // the first is of 2025
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A function from pixels, (channels, height, width), to { values, distance, attention }. */
export async function loadModel(plan) {
  ort.env.logLevel = "error";
  ort.env.wasm.numThreads = 1; // several need headers of a server that a file does not have
  ort.env.wasm.wasmBinary = (await bytesOf("runtime")).buffer;
  const session = await ort.InferenceSession.create(await bytesOf("model"), { executionProviders: ["wasm"], logSeverityLevel: 3 });
  return async (pixels) => {
    const outputs = await session.run({ pixels: new ort.Tensor("uint8", pixels, [1, plan.channels, ...plan.size]) });
    return {
      values: Array.from((outputs.values ?? outputs.probabilities).data),
      distance: outputs.distance ? outputs.distance.data[0] : null,
      attention: outputs.attention ? mapOf(outputs.attention) : null,
    };
  };
}

/** The mean of the heads: (1, heads, down, across) → one value a patch. */
function mapOf({ data, dims: [, heads, down, across] }) {
  const patches = down * across;
  const values = Float32Array.from({ length: patches }, (_, patch) => {
    let sum = 0;
    for (let head = 0; head < heads; head++) sum += data[head * patches + patch];
    return sum / heads;
  });
  return { values, down, across };
}
