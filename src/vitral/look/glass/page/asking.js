// What the page asks of the server. What goes wrong becomes an Error whose message is a sentence.

const GONE = "The glass does not answer any more. Is `vitral glass` still running in the terminal?";

/** What the server sends, or the sentence that it is gone: it can go in the middle of an answer too. */
async function heard(coming) {
  try {
    return await coming;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(GONE);
  }
}

async function ask(path, options = {}) {
  const answer = await heard(fetch(path, options));
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Error(told.error ?? `The glass answered with ${answer.status}.`);
}

const askJSON = async (path, options) => heard((await ask(path, options)).json());

export const askModel = () => askJSON("api/model");

export const askPicture = (number) => askJSON(`api/pictures/${number}`);

export const addressOf = (number) => `api/pictures/${number}.png`;

/** Hand a file over; what comes back is a picture with a number. */
export async function handOver(file, mostBytes) {
  if (file.size > mostBytes) {
    throw new Error(`${file.name} has more than ${mostBytes / 2 ** 20} MB. Make it smaller, and try again.`);
  }
  return askJSON("api/pictures", { method: "POST", body: file });
}

/** What the model says without these patches. */
export async function askWithout(number, off) {
  return (await askJSON(`api/pictures/${number}/answer`, { method: "POST", body: JSON.stringify({ off }) })).answer;
}

/** A map over the patches by a method; for a class, where `label` is one. */
export async function askReading(number, method, label = null) {
  const query = label === null ? "" : `?class=${label}`;
  const answer = await ask(`api/pictures/${number}/readings/${method}${query}`);
  return new Float32Array(await heard(answer.arrayBuffer()));
}

/** All attention of a picture, block after block; `arrived` is told how many bytes are there. */
export async function askMaps(number, maps, arrived, signal) {
  const reader = (await ask(`api/pictures/${number}/maps`, { signal })).body.getReader();
  let at = 0;
  for (;;) {
    const { done, value } = await heard(reader.read());
    if (done) break;
    maps.bytes.set(value, at);
    at += value.length;
    arrived(at);
  }
  if (at < maps.bytes.length) throw new Error(GONE);
}
