// How a picture becomes the model's input, as `Preprocess` in Python has it: `plan` says which way, and in which sizes.

import { resample, wholeOf } from "vitral/resample";

const MOST_PIXELS = 250_000_000;

/** Python's `round`: a half goes to the even number. */
const rounded = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));

/** What is done to a picture of this size: what part of it (`box`) is scaled to which size (`scaled`), and where in
 * that the model's input begins (`top`, `left`), which below 0 is outside, where there is `around`. */
export function waysOf(height, width, { size, stored, resize, background }) {
  const [down, across] = size;
  let [scaled, box, around] = [stored, { left: 0, top: 0, right: width, bottom: height }, 0];
  let half = (margin) => Math.floor(margin / 2);
  if (resize.kind === "none" && (height !== down || width !== across)) {
    throw new Error(`This picture has ${height} × ${width} pixels, and the model takes ${down} × ${across}: it was made for pictures of that size alone.`);
  } else if (resize.kind === "pad") {
    const times = Math.max(height / down, width / across);
    scaled = [Math.max(1, rounded(height / times)), Math.max(1, rounded(width / times))];
    around = background;
    half = (margin) => -Math.floor(-margin / 2);
  } else if (resize.kind === "crop") {
    const scale = Math.min(width / stored[1], height / stored[0]);
    const [left, top] = [Math.max(0, width - stored[1] * scale) / 2, Math.max(0, height - stored[0] * scale) / 2];
    box = { left, top, right: width - left, bottom: height - top };
  } else if (resize.kind !== "none") {
    scaled = resize.edges;
    if (resize.kind === "shortest") {
      const longer = Math.trunc((scaled[0] * Math.max(height, width)) / Math.min(height, width));
      scaled = height > width ? [longer, scaled[0]] : [scaled[0], longer];
    }
    half = (margin) => {
      if (resize.rounding === "down") return Math.floor(margin / 2);
      return margin > 0 ? rounded(margin / 2) : Math.ceil(margin / 2);
    };
  }
  if (scaled[0] * scaled[1] > MOST_PIXELS) throw new Error("This picture is too long and thin: scaled for the model it would be too large.");
  const [top, left] = [half(scaled[0] - down), half(scaled[1] - across)];
  return { scaled, box, top, left, around };
}

/** The model's input, (channels, height, width) of 8 bits, from `source`: see `resample`. */
export function pixelsOf(source, plan) {
  const { scaled, box, top, left, around } = waysOf(source.height, source.width, plan);
  const [tall, wide] = scaled;
  const [down, across] = plan.size;
  const same = tall === source.height && wide === source.width;
  const whole = same ? wholeOf(source) : resample(source, scaled, plan.interpolation, plan.downFirst, box);
  const pixels = new Uint8Array(source.bands * down * across).fill(around);
  for (let y = Math.max(0, -top); y < down && y + top < tall; y++) {
    for (let x = Math.max(0, -left); x < across && x + left < wide; x++) {
      for (let band = 0; band < source.bands; band++) {
        pixels[(band * down + y) * across + x] = whole[((y + top) * wide + x + left) * source.bands + band];
      }
    }
  }
  return pixels;
}

/** The part of a picture that the model sees, in pixels of the picture; it may reach beyond it. */
export function partOf(height, width, plan) {
  const { scaled, box, top, left } = waysOf(height, width, plan);
  const [down, across] = [(box.bottom - box.top) / scaled[0], (box.right - box.left) / scaled[1]];
  return { left: box.left + left * across, top: box.top + top * down, width: plan.size[1] * across, height: plan.size[0] * down };
}
