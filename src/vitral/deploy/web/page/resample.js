// Pillow's resampling of pictures of 8 bits (its Resample.c), to the level: first across, then down, with weights of 22
// bits, and 8 bits in between. A picture that becomes smaller is averaged over all that a pixel covers.

const BITS = 22;
const HALF = 1 << (BITS - 1);
const AT_ONCE = 1 << 22; // pixels that are read at once: a canvas of more is not everywhere possible

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

const FILTERS = {
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  hamming: [1, (x) => (Math.abs(x) >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * Math.cos(Math.PI * x)))],
  bicubic: [2, (x) => cubic(Math.abs(x), -0.5)],
  lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

function cubic(x, a) {
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/** For each of `count` pixels: the first pixel of `size` that it is from, how many, and how much of each. */
function weightsOf(size, from, to, count, filter) {
  const [reach, weight] = FILTERS[filter];
  const scale = Math.fround(to - from) / count;
  const wide = Math.max(scale, 1); // below 1 it becomes larger, and the filter keeps its size
  const support = reach * wide;
  const most = 2 * Math.ceil(support) + 1;
  const first = new Int32Array(count);
  const counts = new Int32Array(count);
  const weights = new Int32Array(count * most);
  for (let i = 0; i < count; i++) {
    const centre = from + (i + 0.5) * scale;
    first[i] = Math.max(0, Math.trunc(centre - support + 0.5));
    counts[i] = Math.min(size, Math.trunc(centre + support + 0.5)) - first[i];
    const shares = Array.from({ length: counts[i] }, (_, k) => weight((k + first[i] - centre + 0.5) * (1 / wide)));
    const sum = shares.reduce((a, b) => a + b, 0);
    shares.forEach((share, k) => {
      const exact = (sum === 0 ? share : share / sum) * (1 << BITS);
      weights[i * most + k] = Math.trunc(exact + (exact < 0 ? -0.5 : 0.5));
    });
  }
  return { first, counts, weights, most };
}

/** All of a source, read in strips: a canvas of more pixels is not everywhere possible. */
export function wholeOf(source) {
  const whole = new Uint8ClampedArray(source.height * source.width * source.bands);
  for (const [top, rows] of stripsOf(source, 0, source.height)) {
    whole.set(source.read(top, rows), top * source.width * source.bands);
  }
  return whole;
}

function* stripsOf({ width }, begin, end) {
  const step = Math.max(1, Math.floor(AT_ONCE / width));
  for (let top = begin; top < end; top += step) yield [top, Math.min(step, end - top)];
}

/** A source is { read, height, width, bands }: `read(top, rows)` gives rows of it, bands last, of 8 bits. What is
 * returned has the size `out`, [height, width], and is all of it, bands last. `box` is the part of the source that is
 * taken, { left, top, right, bottom }, which need not be whole pixels. `downFirst`: from Pillow 13 on, a picture that
 * loses more than twice as many rows as columns is scaled down before it is scaled across. */
export function resample(source, out, filter, downFirst, box = { left: 0, top: 0, right: source.width, bottom: source.height }) {
  const { height, width } = source;
  const [tall, wide] = out;
  const [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom].map(Math.fround); // as Pillow takes them
  if (filter === "nearest") return nearest(source, out, { left, top, right, bottom });
  const across = wide !== width || left !== 0 || right !== wide ? weightsOf(width, left, right, wide, filter) : null;
  const down = tall !== height || top !== 0 || bottom !== tall ? weightsOf(height, top, bottom, tall, filter) : null;
  const isDownFirst = downFirst && height > tall && height - tall > 2 * (width - wide);
  const passes = [across && ((one) => scaledAcross(one, across)), down && ((one) => scaledDown(one, down))];
  if (isDownFirst) passes.reverse();
  return wholeOf(passes.reduce((one, pass) => (pass ? pass(one) : one), source));
}

function scaledAcross({ read, height, width, bands }, { first, counts, weights, most }) {
  const wide = first.length;
  const readScaled = (top, rows) => {
    const [pixels, scaled] = [read(top, rows), new Uint8ClampedArray(rows * wide * bands)];
    for (let row = 0, at = 0; row < rows; row++) {
      for (let x = 0; x < wide; x++) {
        const start = (row * width + first[x]) * bands;
        for (let band = 0; band < bands; band++, at++) {
          let sum = HALF;
          for (let k = 0, from = start + band; k < counts[x]; k++, from += bands) sum += pixels[from] * weights[x * most + k];
          scaled[at] = sum >> BITS; // the array clamps it to 0 to 255
        }
      }
    }
    return scaled;
  };
  return { read: readScaled, height, width: wide, bands };
}

function scaledDown(source, { first, counts, weights, most }) {
  const [tall, line] = [first.length, source.width * source.bands];
  const sums = new Int32Array(tall * line).fill(HALF);
  for (const [top, rows] of stripsOf(source, first[0], first[tall - 1] + counts[tall - 1])) {
    const pixels = source.read(top, rows);
    for (let y = 0; y < tall; y++) {
      const [begin, end] = [Math.max(first[y], top), Math.min(first[y] + counts[y], top + rows)];
      for (let row = begin; row < end; row++) {
        const weight = weights[y * most + row - first[y]];
        for (let i = y * line, from = (row - top) * line; i < (y + 1) * line; i++, from++) sums[i] += pixels[from] * weight;
      }
    }
  }
  const scaled = Uint8ClampedArray.from(sums, (sum) => sum >> BITS);
  const read = (top, rows) => scaled.subarray(top * line, (top + rows) * line);
  return { read, height: tall, width: source.width, bands: source.bands };
}

/** No weights: the pixel in which the middle lies, found by adding up, as Pillow does. */
function nearest({ read, height, width, bands }, [tall, wide], { left, top, right, bottom }) {
  const places = (from, to, count) => {
    const step = Math.fround(to - from) / count;
    const found = new Int32Array(count);
    for (let i = 0, place = from + step * 0.5; i < count; i++, place += step) found[i] = Math.trunc(place);
    return found;
  };
  const [columns, lines] = [places(left, right, wide), places(top, bottom, tall)];
  const whole = new Uint8ClampedArray(tall * wide * bands);
  lines.forEach((line, y) => {
    if (line >= height) return;
    const pixels = read(line, 1);
    columns.forEach((column, x) => {
      if (column >= width) return;
      for (let band = 0; band < bands; band++) whole[(y * wide + x) * bands + band] = pixels[column * bands + band];
    });
  });
  return whole;
}
