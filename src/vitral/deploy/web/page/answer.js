// What the model says, in words and bars: a class, several labels, a number, or one of these for each of several tasks.

const SHOWN = 5; // classes
const LEAST = 0.5; // an answer below is called unsure

/** With a space at which no line breaks. */
const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1\u00a0%" : `${(100 * share).toFixed(1)}\u00a0%`);

/** A number with four digits that count. */
export function numberWords(value) {
  const before = value ? Math.floor(Math.log10(Math.abs(value))) + 1 : 1;
  const digits = Math.min(Math.max(4 - before, 0), 8);
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** For each target: its { title, label, share, note, rows: [{ name, share, threshold, said }] }. */
export function answersOf(values, { targets, thresholds, margins }) {
  let begin = 0;
  return targets.map(({ name, kind, names }) => {
    const mine = names.map((each, place) => ({ name: each, share: values[begin + place], threshold: thresholds[begin + place] }));
    const margin = margins[begin];
    begin += names.length;
    const title = targets.length > 1 || kind === "number" ? name : "";
    if (kind === "number") return numberOf(title, mine[0].share, margin);
    const rows = mine.sort((one, other) => other.share - one.share); // equal ones stay in their order
    return kind === "class" ? classOf(title, rows) : labelsOf(title, rows);
  });
}

function classOf(title, rows) {
  const [{ name, share }] = rows;
  const note = share < LEAST ? "It is unsure." : "";
  return { title, label: name, share, note, rows: rows.slice(0, SHOWN).map((row, place) => ({ ...row, threshold: null, said: place === 0 })) };
}

function labelsOf(title, rows) {
  const each = rows.map((row) => ({ ...row, said: row.share >= row.threshold }));
  const said = each.filter((row) => row.said);
  const sure = said.length ? rows[0].share : 1 - rows[0].share;
  return {
    title,
    label: said.map((row) => row.name).join(", ") || "no label",
    share: null,
    note: sure < LEAST ? "It is unsure." : "",
    rows: each.slice(0, Math.max(SHOWN, said.length)),
  };
}

function numberOf(title, value, margin) {
  const note = margin ? `${numberWords(value - margin)} to ${numberWords(value + margin)}, 9 times out of 10` : "";
  return { title, label: numberWords(value), share: null, note, rows: [] };
}

const made = (kind, className, textContent = "") => Object.assign(document.createElement(kind), { className, textContent });

/** The answers as elements. */
export function elementsOf(answers) {
  return answers.map(({ title, label, share, note, rows }) => {
    const section = made("div", "answer");
    if (title) section.append(made("h3", "", title));
    const headline = made("p", "headline");
    headline.append(made("span", "label", label));
    if (share !== null) headline.append(made("span", "share", percent(share)));
    section.append(headline);
    if (note) section.append(made("p", "soft", note));
    if (!rows.length) return section;
    const list = made("ul", "rows");
    list.append(...rows.map(rowOf));
    section.append(list);
    if (rows.some((row) => row.threshold !== null)) {
      section.append(made("p", "soft small", "A label is said from its mark on, which validation pictures chose."));
    }
    return section;
  });
}

function rowOf({ name, share, threshold, said }) {
  const row = made("li", said ? "row said" : "row");
  const bar = made("span", "bar");
  bar.append(made("i", ""));
  bar.firstChild.style.width = `${100 * share}%`;
  if (threshold !== null) {
    bar.append(made("b", ""));
    bar.lastChild.style.left = `${100 * threshold}%`;
  }
  row.append(made("span", "name", name), bar, made("span", "number", percent(share)));
  return row;
}

/** The answers as one sentence, for those who hear the page. */
export function sentenceOf(answers, isUnknown) {
  const parts = answers.map(({ title, label, share, note }) => {
    const words = [title && `${title}:`, share === null ? label : `${label}, ${percent(share)}`].filter(Boolean).join(" ");
    return note ? `${words}. ${note}` : words;
  });
  return `${isUnknown ? "Unknown: unlike the pictures that it learnt from. Perhaps " : ""}${parts.join("; ")}`;
}
