// cividis (Nuñez, Anderton and Renslow 2018): perceptually even, and the same to all kinds of colour vision.
// 256 colours, from none to most, six digits each: the map of every figure of Vitral.
const TABLE =
  "00224d00234f00235000245200255400265500265700275900285b00285c00295e002a60002a62002b64002c66002c67002d69002e6b" +
  "002f6d002f6f0030700030700031700031700432700833700b33700e347011356f14366f16366f18376f1a386f1c386e1d396e1f3a6e" +
  "213b6e223b6e243c6e253d6d273d6d283e6d2a3f6d2b3f6d2c406d2e416c2f426c30426c31436c32446c34446c35456c36466c37466c" +
  "38476c39486c3a486b3b496b3d4a6b3e4b6b3f4b6b404c6b414d6b424d6b434e6b444f6b454f6b46506b47516b48516b49526b4a536b" +
  "4b546c4c546c4d556c4e566c4e566c4f576c50586c51586c52596c535a6c545a6c555b6d565c6d575d6d585d6d595e6d595f6d5a5f6d" +
  "5b606e5c616e5d616e5e626e5f636e60646e61646f61656f62666f63666f64676f656870666970676970686a70686b71696b716a6c71" +
  "6b6d716c6d726d6e726e6f726e70736f7073707173717273727374737374747475747575757575767676777776787876797877797977" +
  "7a7a777b7b777c7b787d7c787e7d787f7d78807e78817f788280788380788481788582788583788683788784788885788986788a8678" +
  "8b87788c88788d89788e89788f8a77908b77918c77928c77938d77948e77958f77968f779790769891769992769a93769b93769c9476" +
  "9d95759e96759f9675a09775a19874a29974a39a74a49a74a59b73a69c73a79d73a89e73a99e72aa9f72aba072aca171ada271aea271" +
  "afa370b0a470b1a570b2a66fb3a66fb4a76fb5a86eb6a96eb7aa6db8ab6db9ab6dbaac6cbbad6cbcae6bbdaf6bbeb06abfb06ac1b169" +
  "c2b269c3b368c4b468c5b567c6b567c7b666c8b765c9b865cab964cbba64ccbb63cdbc62cebc62cfbd61d0be60d2bf60d3c05fd4c15e" +
  "d5c25ed6c35dd7c35cd8c45bd9c55adac65adbc759dcc858dec957dfca56e0cb55e1cc54e2cc53e3cd52e4ce51e5cf50e6d04fe8d14e" +
  "e9d24dead34cebd44becd54aedd648eed747efd846f1d944f2da43f3da42f4db40f5dc3ff6dd3df8de3bf9df3afae038fbe136fde234" +
  "fde333fde534fde636fde737";

export const CIVIDIS = Array.from({ length: 256 }, (_, level) =>
  [0, 2, 4].map((at) => parseInt(TABLE.slice(6 * level + at, 6 * level + at + 2), 16)),
);

const BRIGHTEST = 0.03; // of the patches, which all have the brightest colour: as in the figures (look/figures.py)
export const LEAST = 1e-12; // where a scale ends at which nearly all patches have nothing

/** Where the scale of a map ends, with `BRIGHTEST` of its patches above. In many models a few patches of the
 * background get so much that all others would be dark beside them (arXiv:2309.16588). */
export function endOf(values) {
  const sorted = Float32Array.from(values).sort();
  const place = (1 - BRIGHTEST) * (sorted.length - 1);
  const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return Math.max(below + (above - below) * (place % 1), LEAST);
}

/** Values become the pixels of a small picture, one a patch; from 0 to `end`, and what is above has its colour. */
export function coloured(values, across, end = endOf(values)) {
  const pixels = new ImageData(across, values.length / across);
  for (let i = 0; i < values.length; i++) {
    const level = Math.min(255, Math.floor((Math.max(0, values[i]) / end) * 256));
    pixels.data.set(CIVIDIS[level], 4 * i);
    pixels.data[4 * i + 3] = 255;
  }
  return pixels;
}

/** The colours as a stripe, for a legend. */
export function drawLegend(canvas) {
  canvas.width = 256;
  canvas.height = 1;
  const levels = Float32Array.from({ length: 256 }, (_, level) => level);
  canvas.getContext("2d").putImageData(coloured(levels, 256, 256), 0, 0);
}
