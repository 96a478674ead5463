// The page: a picture goes under the glass, people point at it, and everything that is drawn follows from `state`.

import { Answers } from "./answers.js";
import { addressOf, askMaps, askModel, askPicture, askReading, askWithout, handOver } from "./asking.js";
import { drawLegend } from "./colours.js";
import { Maps, MEAN } from "./maps.js";
import { Stage } from "./stage.js";
import { asking, isReady, nameOf, patchCount, patchOf, readsMean, recall, remember, showing, state, tokenOf } from "./state.js";
import { Strip } from "./strips.js";
import { $, andMore, busy, empty, tell, tellOff, tellTool, titleOf, trouble } from "./telling.js";

let stage, heads, blocks, readings, examples, answers;
let loading = new AbortController(); // of the maps of the picture that is shown
let newest = 0; // number of the last wish for a picture

// --- drawing: at most once a frame

let asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    drawNow();
  });
}

function drawNow() {
  if (!state.model) return;
  fitHeads();
  const { grid, heads: counts, depth } = state.model;
  const token = asking();
  const shows = showing();
  let values = shows ? (state.readings.get(shows) ?? null) : null;
  let row = null;
  if (isReady(state.block)) {
    row = state.maps.row(state.block, state.head, token);
    if (!shows) values = state.maps.patchesOf(row);
    const brightest = (end) => `brightest: ${andMore(end)}`;
    for (let head = MEAN; head < counts[state.block]; head++) {
      const one = state.maps.row(state.block, head, token);
      heads.draw(head + 1, state.maps.patchesOf(one), grid[1], brightest);
    }
    for (let block = 0; block < depth; block++) {
      if (!isReady(block)) break;
      const head = state.head < counts[block] ? state.head : MEAN;
      blocks.draw(block, state.maps.patchesOf(state.maps.row(block, head, token)), grid[1], brightest);
    }
  }
  stage.draw({ values, strength: state.strength, marked: patchOf(token), held: state.hovered === null, off: state.off });
  heads.mark(shows ? null : state.head + 1);
  blocks.mark(shows ? null : state.block);
  readings.mark(shows ? state.model.methods.indexOf(shows) : null);
  tell(token, row, values);
}

// --- a picture goes under the glass

async function open(getPicture) {
  const wish = ++newest;
  trouble("");
  busy("Reading the picture…");
  try {
    const picture = await getPicture();
    const image = new Image();
    image.src = addressOf(picture.number);
    await image.decode().catch(() => {
      throw new Error("The picture could not be shown.");
    });
    if (wish !== newest) return;
    loading.abort(); // not before: what cannot be read leaves the picture before it as it was
    loading = new AbortController();
    const { signal } = loading;
    Object.assign(state, { picture, maps: null, hovered: null, label: null, answer: picture.answer });
    state.readings.clear();
    state.off.clear();
    stage.put(image);
    examples.mark(picture.number < state.model.examples.length ? picture.number : null);
    showAnswer();
    remember();
    draw();
    await fetchMaps(picture.number, signal);
    busy("");
    await fetchReadings(picture.number, signal);
  } catch (error) {
    if (wish !== newest) return;
    trouble(error.message);
    if (state.picture) busy("");
    else empty();
  }
}

async function fetchMaps(number, signal) {
  if (state.model.no_maps) return trouble(state.model.no_maps);
  const maps = new Maps(state.model);
  state.maps = maps;
  await askMaps(
    number,
    maps,
    (at) => {
      const before = maps.blocks;
      if (maps.arrived(at) > before) busy(`Block ${maps.blocks} of ${state.model.depth}…`);
      draw();
    },
    signal,
  );
}

async function fetchReadings(number, signal) {
  for (const [place, method] of state.model.methods.entries()) {
    const values = await askReading(number, method);
    if (signal.aborted) return;
    if (method === "class-attention" && state.label !== null) continue; // somebody asked for a class meanwhile
    state.readings.set(method, values);
    readings.draw(place, values, state.model.grid[1]);
    draw();
  }
  $("glass").dataset.readings = number;
}

// --- patches off

let running = false;
let again = false;

/** While one question is under way, only the newest of those that follow is kept. */
async function askAgain() {
  again = true;
  if (running) return;
  running = true;
  while (again) {
    again = false;
    const [picture, off] = [state.picture, [...state.off]];
    try {
      const answer = await askWithout(picture.number, off);
      if (picture !== state.picture) continue; // not its number: the same one may have been put under again
      state.answer = answer;
      trouble("");
      showAnswer(off.length);
    } catch (error) {
      if (picture === state.picture) trouble(error.message);
    }
  }
  running = false;
}

function paint(patch, off) {
  if (!state.picture || state.off.has(patch) === off) return;
  if (state.model.fixed) return trouble(state.model.fixed);
  if (off) state.off.add(patch);
  else state.off.delete(patch);
  tellOff();
  draw();
  askAgain();
}

function showAnswer(off = 0) {
  const shown = state.shows === "class-attention" ? (state.label?.number ?? state.answer?.rows[0].label) : null;
  answers.show({ answer: state.answer, truth: state.picture.label, off, patches: patchCount() }, shown);
  $("glass").dataset.answered = off;
  tellOff();
}

// --- what people do

async function showClass(number, name) {
  const label = { number, name };
  Object.assign(state, { shows: "class-attention", label });
  showAnswer(state.off.size);
  draw();
  try {
    const values = await askReading(state.picture.number, "class-attention", number);
    if (state.label !== label) return; // another was asked for since, or another picture came
    state.readings.set("class-attention", values);
    readings.draw(state.model.methods.indexOf("class-attention"), values, state.model.grid[1]);
    $("glass").dataset.label = number;
    draw();
  } catch (error) {
    if (state.label === label) trouble(error.message);
  }
}

function show(changes) {
  Object.assign(state, changes);
  fitHeads();
  if (state.answer) showAnswer(state.off.size);
  remember();
  draw();
}

/** As many tiles as the block has heads: in a Swin a later one has more. */
function fitHeads() {
  const count = state.model.heads[state.block];
  if (state.head >= count) state.head = MEAN;
  if (heads.tiles?.length === count + 1) return;
  heads.fill([{ name: "mean" }, ...Array.from({ length: count }, (_, head) => ({ name: `head ${head}` }))]);
}

function announce() {
  drawNow();
  const off = state.off.has(patchOf(asking())) ? ", off" : "";
  $("said").textContent = `${nameOf(asking())}${off}. ${$("readout").textContent}`;
}

const told = {
  hovered: (patch) => {
    const token = patch === null ? null : tokenOf(patch);
    if (token === state.hovered) return;
    state.hovered = token;
    draw();
  },
  held: (patch) => {
    show({ held: state.held === tokenOf(patch) ? null : tokenOf(patch), shows: null });
  },
  painted: (patch, off) => {
    paint(patch, off);
    if (document.activeElement === $("stage")) announce();
  },
  moved: (patch) => {
    show({ held: tokenOf(patch), hovered: null, shows: state.brush ? state.shows : null });
    announce();
  },
  escaped: () => {
    show({ held: null, hovered: null, shows: null });
    announce();
  },
  turned: (by) => {
    show({ block: Math.max(0, Math.min(state.model.depth - 1, state.block + by)), shows: null });
    announce();
  },
};

// --- start

function prepare(model) {
  state.model = model;
  state.block = model.depth - 1;
  const [height, width] = model.image_size;
  const plural = (count, word) => `${count.toLocaleString("en")}\u00a0${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
  const [down, across] = model.grid;
  const [fewest, most] = [Math.min(...model.heads), Math.max(...model.heads)];
  document.title = `${model.name} under glass`;
  $("name").textContent = model.name;
  $("facts").textContent = [
    `${width} × ${height} pixels in ${across} × ${down} patches`,
    plural(model.depth, "block"),
    (fewest < most ? `${fewest} to ` : "") + plural(most, "head"),
    model.classes ? plural(model.classes, model.output) : "no classes",
  ].join(" · ");
  stage = new Stage($("stage"), model.grid, told);
  stage.isBrush = () => state.brush;
  stage.isOff = (patch) => state.off.has(patch);
  const hasClasses = model.methods.includes("class-attention");
  const parts = { headline: $("headline"), rows: $("rows"), note: $("note"), said: $("predicted"), several: model.output === "label" };
  answers = new Answers(parts, hasClasses ? showClass : null);
  $("rows-hint").hidden = !hasClasses;
  $("rows-hint").textContent = `Choose a ${model.output} to see what spoke for it.`;
  heads = new Strip($("heads"), (place) => show({ head: place - 1, shows: null }));
  fitHeads();
  blocks = new Strip($("blocks"), (block) => show({ block, shows: null }));
  blocks.fill(Array.from({ length: model.depth }, (_, block) => ({ name: `${block}`, label: `block ${block}` })));
  readings = new Strip($("readings"), (place) => show({ shows: model.methods[place] }));
  readings.fill(model.methods.map((method) => ({ name: titleOf(method) })));
  examples = new Strip($("examples"), (number) => open(() => askPicture(number)));
  examples.fill(
    model.examples.map(({ number, name, label }) => ({
      name: label ?? name,
      label: label === null ? name : `${label}, ${name}`,
      image: addressOf(number),
    })),
  );
  $("block").max = model.depth - 1;
  chips(model);
  drawLegend($("stripe"));
  tellTool();
  if (Math.max(height, width) <= 64) document.body.classList.add("pixelated");
}

function chips(model) {
  const mean = readsMean(model) ? [[MEAN, "all patches (mean)"]] : [];
  const extra = model.extra.map((name, token) => [token, name.startsWith("register") ? name : `${name} token`]);
  for (const [token, name] of [...mean, ...extra, ["patch", ""]]) {
    const chip = document.createElement("button");
    Object.assign(chip, { type: "button", textContent: name });
    chip.dataset.token = token;
    if (token === "patch") chip.addEventListener("click", () => $("stage").focus());
    else chip.addEventListener("click", () => show({ held: token, hovered: null, shows: null }));
    $("asks").append(chip);
  }
}

function listen() {
  const putUnder = (file) => file && open(() => handOver(file, state.model.most_bytes));
  $("file").addEventListener("change", (event) => {
    putUnder(event.target.files[0]);
    event.target.value = ""; // the same file can be chosen again
  });
  $("block").addEventListener("input", (event) => show({ block: Number(event.target.value), shows: null }));
  $("strength").addEventListener("input", (event) => show({ strength: event.target.value / 100 }));
  for (const tool of ["look", "brush"]) {
    $(tool).addEventListener("click", () => {
      state.brush = tool === "brush";
      tellTool();
    });
  }
  $("back").addEventListener("click", () => {
    state.off.clear();
    $("stage").focus({ preventScroll: true });
    tellOff();
    draw();
    askAgain();
  });
  let inside = 0; // dragenter and dragleave come for every element on the way
  addEventListener("dragenter", (event) => {
    inside++;
    $("dropping").hidden = !event.dataTransfer?.types.includes("Files");
  });
  addEventListener("dragleave", () => ($("dropping").hidden = --inside < 1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    $("dropping").hidden = true;
    putUnder(event.dataTransfer.files[0]);
  });
  addEventListener("resize", draw);
  addEventListener("hashchange", () => {
    const { picture, sentence } = recall();
    if (picture !== null && picture !== state.picture?.number) open(() => askPicture(picture));
    trouble(sentence);
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

async function begin({ picture, sentence }) {
  if (picture === null) return empty();
  const opened = open(() => askPicture(picture));
  if (sentence) trouble(sentence);
  await opened;
  if (state.picture || picture === 0) return;
  sentence = $("trouble").textContent; // the address named a picture that is no longer there: another, and why
  await open(() => askPicture(0));
  trouble(sentence);
}

try {
  prepare(await askModel());
  listen();
  await begin(recall());
} catch (error) {
  trouble(error.message);
}
