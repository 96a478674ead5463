// Small maps side by side, of which one is chosen: by mouse, or as radio buttons by arrow keys.

import { coloured, endOf } from "./colours.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

export class Strip {
  constructor(container, choose) {
    this.container = container;
    this.choose = choose;
    container.addEventListener("keydown", (event) => this.moved(event));
  }

  /** One tile a name; what was there goes. `image`: an address that is shown instead of a map. */
  fill(tiles) {
    this.tiles = tiles.map(({ name, label = name, image }, number) => {
      const tile = document.createElement("button");
      tile.type = "button";
      tile.className = "tile";
      tile.setAttribute("role", "radio");
      const shown = document.createElement(image ? "img" : "canvas");
      if (image) Object.assign(shown, { src: image, alt: "", draggable: false });
      const text = document.createElement("span");
      text.className = "name";
      text.textContent = name;
      tile.setAttribute("aria-label", label);
      tile.append(shown, text);
      tile.addEventListener("click", () => this.choose(number));
      return tile;
    });
    this.container.replaceChildren(...this.tiles);
    this.mark(null);
  }

  /** Which one is chosen; null: none. */
  mark(chosen) {
    this.tiles.forEach((tile, number) => {
      tile.setAttribute("aria-checked", String(number === chosen));
      tile.tabIndex = number === (chosen ?? 0) ? 0 : -1;
    });
  }

  /** A map on its own scale, and where that ends. */
  draw(number, values, across, told = null) {
    const canvas = this.tiles[number].querySelector("canvas");
    const end = endOf(values);
    if (canvas.width !== across) [canvas.width, canvas.height] = [across, values.length / across];
    canvas.getContext("2d").putImageData(coloured(values, across, end), 0, 0);
    if (told) canvas.title = told(end);
  }

  moved(event) {
    const from = this.tiles.indexOf(document.activeElement);
    if (from < 0 || !(event.key in STEPS)) return;
    event.preventDefault();
    const to = (from + STEPS[event.key] + this.tiles.length) % this.tiles.length;
    this.choose(to);
    this.tiles[to].focus();
  }
}
