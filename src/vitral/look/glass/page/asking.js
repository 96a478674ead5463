// What the page asks of the server. What goes wrong becomes an Error whose message is a sentence.

const GONE = "The glass does not answer any more. Is `vitral glass` still running in the terminal?";

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(GONE);
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Error(told.error ?? `The glass answered with ${answer.status}.`);
}

export const askModel = async () => (await ask("/api/model")).json();

export const askPicture = async (number) => (await ask(`/api/pictures/${number}`)).json();

export const addressOf = (number) => `/api/pictures/${number}.png`;

/** Hand a file over; what comes back is a picture with a number. */
export async function handOver(file, mostBytes) {
  if (file.size > mostBytes) {
    throw new Error(`${file.name} has more than ${mostBytes / 2 ** 20} MB. Make it smaller, and try again.`);
  }
  return (await ask("/api/pictures", { method: "POST", body: file })).json();
}

/** What the model says without these patches. */
export async function askWithout(number, off, signal) {
  const options = { method: "POST", body: JSON.stringify({ off: [...off] }), signal };
  return (await (await ask(`/api/pictures/${number}/answer`, options)).json()).answer;
}

/** A map over the patches by a method; for a class, where `label` is one. */
export async function askReading(number, method, label = null) {
  const query = label === null ? "" : `?class=${label}`;
  const answer = await ask(`/api/pictures/${number}/readings/${method}${query}`);
  return new Float32Array(await answer.arrayBuffer());
}

/** All attention of a picture, block after block; `arrived` is told how many blocks are there. */
export async function askMaps(number, maps, arrived, signal) {
  const reader = (await ask(`/api/pictures/${number}/maps`, { signal })).body.getReader();
  for (let at = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    maps.bytes.set(value, at);
    at += value.length;
    arrived(Math.floor(at / maps.bytesPerBlock));
  }
}
