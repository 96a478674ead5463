// The page: a picture comes in by whatever way, and what the model says of it is shown.
//
// Each answer is also an event of the document, `answer`: its detail is { values, distance, attention, seconds } or
// { error }.

import { answersOf, elementsOf, sentenceOf } from "vitral/answer";
import { Camera, hasCamera } from "vitral/camera";
import { drawLegend } from "vitral/colours";
import { loadModel } from "vitral/model";
import { decoded, sourceOf } from "vitral/picture";
import { partOf, pixelsOf } from "vitral/prepare";
import { drawMap, drawPicture } from "vitral/view";

const plan = JSON.parse(document.getElementById("plan").textContent);
const parts = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const camera = new Camera(parts.video);
let shown = null; // { picture, attention }: what the canvases have
let newest = 0; // the number of the picture that came last: what is said of an earlier one is dropped

const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

function say(state, status = "") {
  parts.page.dataset.state = state;
  parts.status.textContent = status;
  parts.status.hidden = !status;
}

function complain(error) {
  const isOurs = error.constructor === Error; // others are the browser's, and no sentences
  parts.trouble.textContent = isOurs ? error.message : `The browser could not do this (${error.message || error}).`;
  parts.trouble.hidden = false;
}

/** Draw what is there, at the size that the page has now. */
function draw() {
  if (!shown) return;
  drawPicture(parts.picture, shown.picture, plan);
  if (shown.attention) drawMap(parts.map, shown.picture, plan, shown.attention);
}

function put(picture) {
  shown?.picture.close();
  shown = { picture, attention: null };
  const part = partOf(picture.height, picture.width, plan);
  const isCut = part.left > 0.5 || part.top > 0.5;
  for (const [element, hidden] of [[parts.picture, false], [parts.waiting, true], [parts.cut, !isCut], [parts.unknown, true], [parts.where, true]]) {
    element.hidden = hidden;
  }
  parts.answers.replaceChildren();
  draw();
}

function tell({ values, distance, attention }) {
  const answers = answersOf(values, plan);
  const isUnknown = distance !== null && distance > 1;
  parts.unknown.hidden = !isUnknown;
  parts.answers.replaceChildren(...elementsOf(answers));
  parts.said.textContent = sentenceOf(answers, isUnknown);
  parts.picture.setAttribute("aria-label", `The picture: ${parts.said.textContent}`);
  shown.attention = attention;
  parts.where.hidden = !attention;
  draw();
}

/** What the model says of a file, or of what else the browser makes a picture of. */
async function ask(file, name) {
  const number = ++newest;
  parts.trouble.hidden = true;
  const isReady = parts.page.dataset.state !== "loading";
  say(isReady ? "busy" : "loading", isReady ? "Looking…" : "Opening the model…");
  const detail = {};
  try {
    const begun = performance.now();
    const picture = await decoded(file, plan, name);
    if (number !== newest) return picture.close();
    const pixels = pixelsOf(sourceOf(picture, plan), plan); // first of all: it may be refused, and what was there stays
    put(picture);
    await painted();
    const answer = await (await model)(pixels);
    if (number !== newest) return;
    Object.assign(detail, answer, { seconds: (performance.now() - begun) / 1000 });
    tell(answer);
  } catch (error) {
    if (number !== newest) return;
    complain(error);
    detail.error = error.message;
  }
  await settle();
  document.dispatchEvent(new CustomEvent("answer", { detail }));
}

/** Nothing is under way any more. */
async function settle() {
  const isThere = await model.then(() => true, () => false);
  if (!isThere) say("failed");
  else say(shown ? "ready" : "empty", shown ? "" : "It stands here once there is a picture.");
}

function askFiles(files, otherwise) {
  if (!files.length) return complain(new Error(otherwise));
  stopCamera();
  ask(files[0]);
}

function stopCamera() {
  camera.stop();
  for (const element of [parts.video, parts.shutter]) element.hidden = true;
  parts.sources.hidden = false;
  parts.picture.hidden = !shown;
  parts.waiting.hidden = Boolean(shown);
}

async function startCamera() {
  parts.trouble.hidden = true;
  try {
    await camera.start();
  } catch (error) {
    return complain(error);
  }
  for (const element of [parts.picture, parts.waiting, parts.sources]) element.hidden = true;
  for (const element of [parts.video, parts.shutter]) element.hidden = false;
  parts.take.focus();
}

async function takePicture() {
  const still = await createImageBitmap(parts.video);
  stopCamera();
  parts.camera.focus();
  ask(still);
}

parts.file.addEventListener("change", () => {
  if (parts.file.files.length) askFiles(parts.file.files);
  parts.file.value = ""; // so that the same one can be chosen again
});
parts.camera.hidden = !hasCamera();
parts.camera.addEventListener("click", startCamera);
parts.take.addEventListener("click", takePicture);
parts.stop.addEventListener("click", () => {
  stopCamera();
  parts.camera.focus();
});
document.addEventListener("paste", ({ clipboardData }) => askFiles(clipboardData.files, "There is no picture in what was pasted: copy a picture, not its address."));
document.addEventListener("dragenter", () => (parts.dropping.hidden = false));
document.addEventListener("dragleave", ({ relatedTarget }) => (parts.dropping.hidden = relatedTarget === null));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  parts.dropping.hidden = true;
  askFiles(event.dataTransfer.files, "What was dropped is no file: save the picture first, and drop that.");
});
new ResizeObserver(draw).observe(parts.stage);

drawLegend(parts.stripe);
const begun = performance.now();
const model = painted().then(() => loadModel(plan));
model.then(
  () => {
    parts.page.dataset.opened = ((performance.now() - begun) / 1000).toFixed(3);
    if (newest === 0) settle();
  },
  (error) => {
    say("failed");
    complain(error);
  },
);
