// The part of a picture that the model saw, and where in it the model looked.

import { coloured } from "vitral/colours";
import { partOf } from "vitral/prepare";

const ENLARGED = 3; // from this many times on, pixels of a small picture are shown as squares
const COVER = 0.62; // of a picture by the map over it

/** Draw it into a canvas that is as wide as its column. */
export function drawPicture(canvas, picture, plan) {
  const part = partOf(picture.height, picture.width, plan);
  const stretched = plan.resize.kind === "stretch"; // the model sees all of it; a person, in its own shape
  const shape = stretched ? part.width / part.height : plan.size[1] / plan.size[0];
  const width = Math.round(Math.max(1, canvas.clientWidth) * (window.devicePixelRatio || 1));
  [canvas.width, canvas.height] = [width, Math.max(1, Math.round(width / shape))];
  const pen = canvas.getContext("2d");
  pen.fillStyle = `rgb(${plan.background} ${plan.background} ${plan.background})`;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const scale = [canvas.width / part.width, canvas.height / part.height];
  pen.imageSmoothingEnabled = Math.min(...scale) < ENLARGED;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(picture, -part.left * scale[0], -part.top * scale[1], picture.width * scale[0], picture.height * scale[1]);
}

/** The same, grey, under the map in its colours. */
export function drawMap(canvas, picture, plan, { values, across }) {
  drawPicture(canvas, picture, plan);
  const pen = canvas.getContext("2d");
  pen.globalCompositeOperation = "saturation";
  pen.fillStyle = "#808080"; // has none
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.globalCompositeOperation = "source-over";
  pen.fillStyle = "rgb(60 60 60 / 40%)"; // neither black nor white: under a map these are left to little and much
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const small = document.createElement("canvas");
  const pixels = coloured(values, across);
  [small.width, small.height] = [pixels.width, pixels.height];
  small.getContext("2d").putImageData(pixels, 0, 0);
  pen.globalAlpha = COVER;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  pen.globalAlpha = 1;
}
