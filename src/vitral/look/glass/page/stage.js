// The picture, large, with a map over it and a patch under the pointer.

import { coloured } from "./colours.js";

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

export class Stage {
  /** `told` hears: hovered(patch or null), held(patch), painted(patch, off), moved(patch), escaped(), turned(by). */
  constructor(element, grid, told) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    [this.down, this.across] = grid;
    this.told = told;
    this.image = this.grey = null;
    this.isBrush = () => false;
    this.isOff = () => false;
    this.painting = null; // while the button is down: true switches off, false back on
    this.canvas.style.aspectRatio = `${this.across} / ${this.down}`;
    element.addEventListener("pointermove", (event) => this.pointed(event));
    element.addEventListener("pointerdown", (event) => this.pressed(event));
    element.addEventListener("pointerup", () => (this.painting = null));
    element.addEventListener("pointercancel", () => (this.painting = null));
    element.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && told.hovered(null));
    element.addEventListener("keydown", (event) => this.typed(event));
  }

  /** Another picture. */
  put(image) {
    this.image = image;
    this.grey = document.createElement("canvas");
    [this.grey.width, this.grey.height] = [image.naturalWidth, image.naturalHeight];
    const pen = this.grey.getContext("2d", { willReadFrequently: true });
    pen.drawImage(image, 0, 0);
    const pixels = pen.getImageData(0, 0, this.grey.width, this.grey.height);
    for (let i = 0; i < pixels.data.length; i += 4) {
      const [red, green, blue] = pixels.data.subarray(i, i + 3);
      // Neither black nor white: under a map these are left to little and much.
      pixels.data.fill(24 + 0.6 * (0.299 * red + 0.587 * green + 0.114 * blue), i, i + 3);
    }
    pen.putImageData(pixels, 0, 0);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.across);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.down);
    const inside = row >= 0 && row < this.down && column >= 0 && column < this.across;
    return inside ? row * this.across + column : null;
  }

  pointed(event) {
    const patch = this.at(event);
    this.told.hovered(patch);
    if (this.painting !== null && patch !== null) this.told.painted(patch, this.painting);
  }

  pressed(event) {
    const patch = this.at(event);
    if (event.button !== 0 || patch === null) return;
    this.told.hovered(patch);
    if (!this.isBrush()) return this.told.held(patch);
    event.preventDefault(); // no text is marked by dragging
    this.element.focus({ preventScroll: true });
    this.element.setPointerCapture(event.pointerId);
    this.painting = !this.isOff(patch);
    this.told.painted(patch, this.painting);
  }

  typed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const here = this.marked ?? null;
    if (event.key in MOVES) {
      const [down, right] = MOVES[event.key];
      const [row, column] = here === null ? [-1, -1] : [Math.floor(here / this.across), here % this.across];
      const to = [Math.max(0, Math.min(this.down - 1, row + down)), Math.max(0, Math.min(this.across - 1, column + right))];
      this.told.moved(here === null ? 0 : to[0] * this.across + to[1]);
    } else if (event.key === " ") {
      if (here !== null) this.told.painted(here, !this.isOff(here));
    } else if (event.key === "Escape") {
      this.told.escaped();
    } else if (event.key === "PageUp" || event.key === "PageDown") {
      this.told.turned(event.key === "PageUp" ? 1 : -1);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** `values`: one a patch, or null; `marked`: the patch that asks; `held`: whether it stays. */
  draw({ values, strength, marked, held, off }) {
    this.marked = marked;
    const [canvas, pen] = [this.canvas, this.canvas.getContext("2d")];
    const box = canvas.getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(box.width * scale), Math.round(box.height * scale)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    pen.clearRect(0, 0, width, height);
    if (!this.image) return;
    pen.imageSmoothingEnabled = this.image.naturalWidth > 100; // a digit of 8 pixels has 8, and shows them
    pen.imageSmoothingQuality = "high";
    pen.drawImage(this.image, 0, 0, width, height);
    if (values) {
      // The map alone brings colour: a blue sky under it would look like little attention.
      pen.globalAlpha = Math.min(1, 2 * strength);
      pen.drawImage(this.grey, 0, 0, width, height);
      this.small ??= document.createElement("canvas");
      [this.small.width, this.small.height] = [this.across, this.down];
      this.small.getContext("2d").putImageData(coloured(values, this.across), 0, 0);
      pen.imageSmoothingEnabled = false; // one square a patch: nothing is known in between
      pen.globalAlpha = strength;
      pen.drawImage(this.small, 0, 0, width, height);
      pen.globalAlpha = 1;
    }
    this.lines(pen, width, height, scale);
    for (const patch of off) this.crossOut(pen, this.boxOf(patch, width, height), scale);
    if (marked !== null) this.frame(pen, this.boxOf(marked, width, height), scale, held);
  }

  boxOf(patch, width, height) {
    const [row, column] = [Math.floor(patch / this.across), patch % this.across];
    const [left, top] = [(column * width) / this.across, (row * height) / this.down].map(Math.round);
    const [right, bottom] = [((column + 1) * width) / this.across, ((row + 1) * height) / this.down].map(Math.round);
    return [left, top, right - left, bottom - top];
  }

  lines(pen, width, height, scale) {
    if (Math.max(this.across, this.down) > 32) return;
    pen.fillStyle = "rgba(255, 255, 255, 0.16)";
    for (let i = 1; i < this.across; i++) pen.fillRect(Math.round((i * width) / this.across), 0, scale, height);
    for (let i = 1; i < this.down; i++) pen.fillRect(0, Math.round((i * height) / this.down), width, scale);
  }

  crossOut(pen, [left, top, width, height], scale) {
    const style = getComputedStyle(this.element);
    pen.fillStyle = style.getPropertyValue("--off");
    pen.fillRect(left, top, width, height);
    pen.strokeStyle = style.getPropertyValue("--off-line");
    pen.lineWidth = scale;
    pen.beginPath();
    pen.moveTo(left + width * 0.3, top + height * 0.3);
    pen.lineTo(left + width * 0.7, top + height * 0.7);
    pen.moveTo(left + width * 0.7, top + height * 0.3);
    pen.lineTo(left + width * 0.3, top + height * 0.7);
    pen.stroke();
  }

  /** White within black, to be seen on any picture. */
  frame(pen, [left, top, width, height], scale, held) {
    const wide = (held ? 3 : 2) * scale;
    pen.lineWidth = wide + 2 * scale;
    pen.strokeStyle = "#000";
    pen.strokeRect(left, top, width, height);
    pen.lineWidth = wide;
    pen.strokeStyle = "#fff";
    pen.strokeRect(left, top, width, height);
  }
}
