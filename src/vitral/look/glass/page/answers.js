// The prediction: how probable each class is, now and of the whole picture.

/** With a space at which no line breaks. */
export const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1\u00a0%" : `${(100 * share).toFixed(1)}\u00a0%`);

export class Answers {
  /** `choose` is told the number of a class whose map somebody wants, and its name. */
  constructor(parts, choose) {
    Object.assign(this, parts); // headline, rows, note, said; several: a picture may have several labels
    this.choose = choose;
  }

  show({ answer, truth, off, patches }, chosen) {
    if (answer === null) {
      this.headline.textContent = "No classes";
      this.note.textContent = "These weights have no classes, so there is nothing to predict. Attention is there.";
      this.rows.replaceChildren();
      return;
    }
    const [first] = answer.rows;
    const verdict = truth === null ? "" : truth === first.name ? "right" : `it is ${truth}`;
    const labels = truth ? `it is ${truth.replaceAll(";", ", ")}` : "it has no label"; // the first is not all it says
    const share = Object.assign(document.createElement("span"), { className: "share", textContent: percent(first.now) });
    const mark = Object.assign(document.createElement("span"), {
      className: this.several ? "soft" : `verdict ${verdict === "right" ? "good" : "bad"}`,
      textContent: this.several ? labels : verdict === "right" ? "✓ right" : `✗ ${verdict}`,
    });
    const name = Object.assign(document.createElement("span"), { className: "label", textContent: first.name });
    this.headline.replaceChildren(name, share, ...(truth === null ? [] : [mark]));
    const focused = this.rows.contains(document.activeElement) ? document.activeElement.dataset.label : null;
    this.rows.replaceChildren(...answer.rows.map((row) => this.row(row, off > 0, chosen)));
    if (focused !== null) this.rows.querySelector(`[data-label="${focused}"]`)?.focus();
    this.rows.dataset.off = off;
    const unlike = answer.distance !== null && answer.distance > 1;
    const what = off ? "What is left is unlike" : "Unlike";
    this.note.textContent = unlike ? `${what} the pictures that it learnt from: the answer means little.` : "";
    const without = off ? ` without ${off} of ${patches} patches` : "";
    this.said.textContent = `Prediction${without}: ${first.name}, ${percent(first.now)}.`;
  }

  row({ label, name, now, whole }, changed, chosen) {
    const row = document.createElement(this.choose ? "button" : "div");
    row.className = "row";
    row.dataset.label = label;
    row.dataset.now = now;
    if (this.choose) {
      row.type = "button";
      row.setAttribute("aria-pressed", String(label === chosen));
      row.title = `Show what spoke for ${name}`;
      row.addEventListener("click", () => this.choose(label, name));
    }
    const told = document.createElement("span");
    told.className = "told";
    const number = document.createElement("span");
    number.className = "number";
    number.textContent = percent(now);
    told.textContent = name;
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.append(document.createElement("i"));
    bar.firstChild.style.width = `${100 * now}%`;
    if (changed) {
      const before = document.createElement("b");
      before.style.left = `${100 * whole}%`;
      bar.append(before);
      const words = document.createElement("span");
      words.className = "unseen";
      words.textContent = `, ${percent(whole)} of the whole picture`;
      number.append(words);
    }
    row.append(told, bar, number);
    return row;
  }
}
