// A file becomes a picture whose pixels can be read: decoded in full by the browser, the right way up (EXIF), with the
// levels as they are stored unless the model wants sRGB. What is wrong is an Error whose message is a sentence.

const MOST_BYTES = 2 ** 30;
const MOST_PIXELS = 250_000_000;
const READ = "JPEG, PNG, WebP, GIF, BMP, AVIF";

const text = (bytes, from, to) => String.fromCharCode(...bytes.subarray(from, to));

/** What kind of picture a file says that it is. */
function kindOf(bytes) {
  const start = text(bytes, 0, 4);
  if (start.startsWith("\xff\xd8")) return "JPEG";
  if (start === "\x89PNG") return "PNG";
  if (start === "GIF8") return "GIF";
  if (start === "RIFF" && text(bytes, 8, 12) === "WEBP") return "WebP";
  if (start.startsWith("BM")) return "BMP";
  if (["II*\0", "MM\0*", "II+\0", "MM\0+"].includes(start)) return "TIFF";
  if (text(bytes, 4, 8) !== "ftyp") return null;
  return /avif|avis/.test(text(bytes, 8, 32)) ? "AVIF" : "HEIC";
}

/** A file, or what else the browser makes a picture of, such as a video. */
export async function decoded(file, plan, name = file.name || "The picture") {
  if (file instanceof Blob && file.size > MOST_BYTES) throw new Error(`${name} has more than 1 GB, which is too much for one picture.`);
  let picture;
  try {
    picture = await createImageBitmap(file, { colorSpaceConversion: plan.profile === "srgb" ? "default" : "none" });
  } catch {
    throw new Error(await why(file, name));
  }
  if (picture.width * picture.height > MOST_PIXELS) {
    const size = `${picture.width} × ${picture.height}`;
    picture.close();
    throw new Error(`${name} has ${size} pixels: more than 250 million are too much for this page. Make it smaller first.`);
  }
  return picture;
}

/** Why the browser made no picture of it. */
async function why(file, name) {
  if (!(file instanceof Blob)) return "The camera gave no picture. Try again.";
  if (file.size === 0) return `${name} is empty.`;
  let kind;
  try {
    kind = kindOf(new Uint8Array(await file.slice(0, 32).arrayBuffer()));
  } catch {
    return `${name} cannot be read: a folder, or a file that has gone.`;
  }
  if (kind === null) return `${name} is not a picture that a browser reads (${READ}).`;
  if (kind === "HEIC") return `${name} is a HEIC picture, as telephones take them, which this browser does not read (Safari does). Save it as JPEG, and choose that.`;
  if (kind === "TIFF") return `${name} is a TIFF, which this browser does not read. Save it as PNG, and choose that.`;
  return `${name} is a ${kind} that this browser cannot decode: it is broken, cut off, or too large.`;
}

/** The pixels of a picture as `resample` reads them: grey or colour, with transparent ones on the model's background. */
export function sourceOf(picture, { channels, background }) {
  const { width, height } = picture;
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  function read(top, rows) {
    [canvas.width, canvas.height] = [width, rows];
    pen.fillStyle = `rgb(${background} ${background} ${background})`;
    pen.fillRect(0, 0, width, rows);
    pen.drawImage(picture, 0, top, width, rows, 0, 0, width, rows);
    const { data } = pen.getImageData(0, 0, width, rows);
    const pixels = new Uint8Array(rows * width * channels);
    for (let from = 0, to = 0; from < data.length; from += 4) {
      if (channels === 3) {
        pixels[to++] = data[from];
        pixels[to++] = data[from + 1];
        pixels[to++] = data[from + 2];
      } else {
        // Pillow's grey, in whole numbers.
        pixels[to++] = (19595 * data[from] + 38470 * data[from + 1] + 7471 * data[from + 2] + 32768) >> 16;
      }
    }
    return pixels;
  }
  return { read, height, width, bands: channels };
}
