// What is shown, who asks, which patches are off; and what follows from it.

import { MEAN } from "./maps.js";

export const state = {
  model: null,
  picture: null, // what the server tells of it: number, name, label, answer
  maps: null,
  readings: new Map(), // maps of the whole model, by method
  shows: null, // a method; null: attention
  label: null, // the class, {number, name}, whose map was asked for; null: the one that it says
  block: 0,
  head: MEAN,
  held: null, // the token that asks while no patch is hovered
  hovered: null,
  off: new Set(), // patches
  answer: null,
  strength: 0.6,
  brush: false,
};

export const patchCount = () => state.model.grid[0] * state.model.grid[1];

/** `answer` has the tokens that the answer is read from: a few extra ones, all patches (their mean), or both. */
export const readsMean = ({ answer, extra }) => answer.at(-1) >= extra.length;

export const asking = () => {
  const { answer, extra } = state.model;
  return state.hovered ?? state.held ?? (answer[0] < extra.length ? answer[0] : MEAN);
};

/** What is on the stage: a method, or null for attention. Who points at a patch sees what it attends to, always. */
export const showing = () => (state.hovered !== null && !state.brush ? null : state.shows);
export const tokenOf = (patch) => patch + state.model.extra.length;
export const isReady = (block) => state.maps !== null && block < state.maps.blocks;

/** Its number among the patches; null: it is another token. */
export const patchOf = (token) => {
  const { extra } = state.model;
  return token !== MEAN && token >= extra.length ? token - extra.length : null;
};

/** As Python names it: rows and columns count from 0. */
export function nameOf(token) {
  const { extra, grid } = state.model;
  if (token === MEAN) return "all patches";
  const patch = patchOf(token);
  return patch === null ? `${extra[token]} token` : `patch ${Math.floor(patch / grid[1])}, ${patch % grid[1]}`;
}

// --- the address keeps what is shown: #picture=2&block=5&head=1

export function remember() {
  const head = state.head === MEAN ? {} : { head: state.head };
  const kept = new URLSearchParams({ picture: state.picture?.number ?? 0, block: state.block, ...head });
  history.replaceState(null, "", `#${kept}`);
}

/** Takes over what the address says. Returns which picture it names, and what is wrong with it, as a sentence. */
export function recall() {
  const asked = new URLSearchParams(location.hash.slice(1));
  let sentence = "";
  for (const [name, countNow] of [["block", () => state.model.depth], ["head", () => state.model.heads[state.block]]]) {
    const [number, count] = [numberOf(asked.get(name)), countNow()];
    if (number !== null && number < count) state[name] = number;
    else if (asked.has(name)) sentence = `There is no ${name} ${asked.get(name)}: the model has ${count}, numbered 0 to ${count - 1}.`;
  }
  const otherwise = state.picture?.number ?? (state.model.examples.length ? 0 : null);
  return { picture: numberOf(asked.get("picture")) ?? otherwise, sentence };
}

const numberOf = (text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);
