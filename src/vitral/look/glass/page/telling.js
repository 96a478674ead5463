// What is told in words: titles, what a token takes most from, what is wrong.

import { percent } from "./answers.js";
import { endOf, LEAST } from "./colours.js";
import { MEAN } from "./maps.js";
import { nameOf, patchCount, patchOf, showing, state, tokenOf } from "./state.js";

export const $ = (id) => document.getElementById(id);

export const METHODS = {
  rollout: ["Rollout", "attention followed from the answer down to the patches"],
  "class-attention": ["Class attention", "attention, weighted by how much more of it would raise the class"],
};

export const titleOf = (method) => METHODS[method]?.[0] ?? method;

/** The end of a scale: what is more has the same colour. */
export const andMore = (end) => (end > LEAST ? `≥\u00a0${end < 0.0005 ? tiny(end) : percent(end)}` : ">\u00a00");
const tiny = (share) => `${Number((100 * share).toPrecision(1))}\u00a0%`;

/** `row`: what the token takes from each token; `values`: what is on the stage. Either may still be missing. */
export function tell(token, row, values) {
  const { block, head, label, model } = state;
  const shows = showing();
  const of = label !== null && shows === "class-attention" ? ` for ${label.name}` : "";
  const who = token === MEAN ? "all patches take" : `${patchOf(token) === null ? "the " : ""}${nameOf(token)} takes`;
  const heads = head === MEAN ? (model.heads[block] > 1 ? `mean of ${model.heads[block]} heads` : "its one head") : `head ${head}`;
  $("title").textContent = shows ? `${titleOf(shows)}${of}` : `What ${who}`;
  $("subtitle").textContent = shows ? (METHODS[shows]?.[1] ?? "") : `from each patch, in block ${block}, ${heads}`;
  $("most").textContent = shows || !values ? "most" : andMore(endOf(values));
  $("readout").textContent = shows ? (values ? brightest(values) : "\u00a0") : row ? takenFrom(token, row) : "\u00a0";
  $("heads-title").textContent = `Heads of block ${block}`;
  $("block-told").textContent = `block ${block}`;
  $("block").value = block;
  $("block").setAttribute("aria-valuetext", `block ${block} of 0 to ${model.depth - 1}`);
  for (const chip of $("asks").children) tellChip(chip, token);
  Object.assign($("glass").dataset, { block, head, asks: token, shows: shows ?? "attention" });
}

function tellChip(chip, token) {
  const isPatch = chip.dataset.token === "patch";
  const pressed = isPatch ? patchOf(token) !== null : Number(chip.dataset.token) === token;
  chip.setAttribute("aria-pressed", String(pressed));
  if (isPatch) chip.textContent = pressed ? nameOf(token) : "point at a patch";
}

const best = (values) => [...values.keys()].sort((one, other) => values[other] - values[one]).slice(0, 3);

/** The three tokens from which most is taken, and how much goes to patches at all. */
function takenFrom(token, row) {
  const told = best(row).map((one) => `${one === token ? "itself" : nameOf(one)} (${percent(row[one])})`);
  const extra = row.subarray(0, state.model.extra.length).reduce((sum, share) => sum + share, 0);
  const rest = state.model.extra.length ? ` Patches get ${percent(1 - extra)} in all.` : "";
  return `Most from ${told.join(", ")}.${rest}`;
}

const brightest = (values) => `Most on ${best(values).map((patch) => nameOf(tokenOf(patch))).join("; ")}.`;

export function tellOff() {
  const off = state.off.size;
  const tick = off && state.answer ? " A tick marks what it says of the whole picture." : "";
  $("off-told").textContent = off ? `${off} of ${patchCount()} patches are off.${tick}` : `All ${patchCount()} patches are on.`;
  $("back").disabled = !off;
}

export function tellTool() {
  $("look").setAttribute("aria-pressed", String(!state.brush));
  $("brush").setAttribute("aria-pressed", String(state.brush));
  $("stage").classList.toggle("brush", state.brush);
  $("hint").textContent = state.brush
    ? "Click or drag over patches: what is off, the model does not see."
    : "Point at a patch to see what it attends to; a click holds it.";
}

export function busy(sentence) {
  $("waiting").textContent = sentence;
  $("waiting").hidden = !sentence;
  $("stage").setAttribute("aria-busy", String(Boolean(sentence)));
  $("glass").dataset.state = sentence ? "loading" : state.picture ? "ready" : "empty";
}

/** Nothing is there yet, and nothing is on its way. */
export function empty() {
  busy("");
  $("waiting").textContent = "Choose a picture, or drop one here.";
  $("waiting").hidden = false;
}

/** Something is wrong; an empty sentence: no longer. */
export function trouble(sentence) {
  $("trouble").hidden = !sentence;
  $("trouble").textContent = sentence;
}
