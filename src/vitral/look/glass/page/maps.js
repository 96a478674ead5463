// The attention of one picture: block by block (heads, T, T), in the 16 bits in which it came.

// Every number of 16 bits as a float: 1 sign, 5 exponent, 10 fraction. Shares have no sign.
const FLOATS = Float32Array.from({ length: 0x8000 }, (_, half) => {
  const [exponent, fraction] = [half >> 10, half & 0x3ff];
  return exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
});

export const MEAN = -1; // of all heads; or of all patches, where the answer is read from their mean

export class Maps {
  /** `heads`: how many each block has. */
  constructor({ heads, extra, grid }) {
    this.starts = [0]; // of the blocks, in heads
    for (const count of heads) this.starts.push(this.starts.at(-1) + count);
    this.extra = extra.length;
    this.patches = grid[0] * grid[1];
    this.tokens = this.extra + this.patches;
    this.bytes = new Uint8Array(this.bytesUntil(heads.length));
    this.halves = new Uint16Array(this.bytes.buffer);
    this.blocks = 0; // how many have arrived
  }

  /** How many bytes the maps of so many blocks have. */
  bytesUntil(blocks) {
    return 2 * this.starts[blocks] * this.tokens ** 2;
  }

  /** `at`: how many bytes are there. */
  arrived(at) {
    while (this.blocks + 1 < this.starts.length && this.bytesUntil(this.blocks + 1) <= at) this.blocks++;
    return this.blocks;
  }

  /** How much one token takes from each token: (T,), sums to 1. */
  row(block, head, token) {
    const [first, end] = [this.starts[block], this.starts[block + 1]];
    const heads = head === MEAN ? [...Array(end - first).keys()] : [head];
    const asking = token === MEAN ? [...Array(this.patches).keys()].map((patch) => this.extra + patch) : [token];
    const sum = new Float32Array(this.tokens);
    for (const one of heads) {
      for (const query of asking) {
        const start = ((first + one) * this.tokens + query) * this.tokens;
        for (let i = 0; i < this.tokens; i++) sum[i] += FLOATS[this.halves[start + i]];
      }
    }
    return sum.map((share) => share / (heads.length * asking.length));
  }

  /** The part of it that goes to the patches. */
  patchesOf(row) {
    return row.subarray(this.extra);
  }
}
