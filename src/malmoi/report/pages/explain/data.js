// What the page was made from: plain values as JSON, and arrays as deflated bytes.

const data = JSON.parse(document.getElementById("data").textContent);
let bytes = new Uint8Array(0);

async function unpackBytes() {
  const packed = Uint8Array.from(atob(document.getElementById("bytes").textContent), (one) => one.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  bytes = new Uint8Array(await new Response(stream).arrayBuffer());
}

// Weights are stored as round(255 sqrt(w)); signed values as 128 + round(127 sign(v) sqrt(|v| / scale)).
function readArray(name, part = null) {
  const { offset, shape, scale } = data.arrays[name];
  const inner = shape.slice(part === null ? 0 : 1);
  const size = inner.reduce((a, b) => a * b, 1);
  const start = offset + (part === null ? 0 : part * size);
  const values = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    const byte = bytes[start + i];
    if (scale === null) {
      values[i] = (byte / 255) ** 2;
    } else {
      const root = (byte - 128) / 127;
      values[i] = Math.sign(root) * root * root * scale;
    }
  }
  return { values, rows: inner[0], columns: inner[1] ?? 1 };
}

function combine(matrices, kind) {
  const { rows, columns } = matrices[0];
  const values = new Float32Array(rows * columns);
  for (const matrix of matrices) {
    for (let i = 0; i < values.length; i++) {
      values[i] = kind === "max" ? Math.max(values[i], matrix.values[i]) : values[i] + matrix.values[i] / matrices.length;
    }
  }
  return { values, rows, columns };
}

function layerNames(kind, output) {
  return kind === "encoder" ? data.layers.encoder : data.layers[kind][output];
}

function rolloutName(kind, output) {
  return kind === "encoder" ? "rollout.encoder.self" : `outputs.${output}.rollout.decoder.${kind === "cross" ? "cross" : "self"}`;
}

function numHeads(kind, output) {
  const names = layerNames(kind, output);
  return names.length ? data.arrays[names[0]].shape[0] : 0;
}

const known = new Map();

// Weights between tokens. layer: a number, "mean" or "rollout"; head: a number, "mean" or "max".
function tokenWeights(kind, output, layer, head) {
  const key = [kind, output, layer, head].join();
  if (known.size > 400) known.clear();
  if (!known.has(key)) known.set(key, computeWeights(kind, output, layer, head));
  return known.get(key);
}

function computeWeights(kind, output, layer, head) {
  if (layer === "rollout") return readArray(rolloutName(kind, output));
  const names = layerNames(kind, output);
  if (layer === "mean") return combine(names.map((_, index) => tokenWeights(kind, output, index, head)), "mean");
  if (typeof head === "number") return readArray(names[layer], head);
  const heads = [...Array(numHeads(kind, output)).keys()];
  return combine(heads.map((index) => readArray(names[layer], index)), head);
}

// Words: the mean of the rows of a word that looks, the sum of the columns of a word that is looked at.
function mergeWords(matrix, rowSpans, columnSpans, rowsAddUp = false) {
  const values = new Float32Array(rowSpans.length * columnSpans.length);
  rowSpans.forEach(([top, bottom], row) => {
    columnSpans.forEach(([left, right], column) => {
      let sum = 0;
      for (let i = top; i < bottom; i++) for (let j = left; j < right; j++) sum += matrix.values[i * matrix.columns + j];
      values[row * columnSpans.length + column] = rowsAddUp ? sum : sum / (bottom - top);
    });
  });
  return { values, rows: rowSpans.length, columns: columnSpans.length };
}

function singleSpans(count) {
  return Array.from({ length: count }, (_, index) => [index, index + 1]);
}

function labelsOf(side, units) {
  return units === "words" ? side.words : side.tokens;
}

function spansOf(side, units) {
  return units === "words" ? side.spans : singleSpans(side.tokens.length);
}

// One picture: labels of who looks (rows) and what is looked at (columns), weights, and what the mask hides.
function makeView(kind, output, layer, head, units) {
  const said = data.outputs[output];
  const rowSide = kind === "encoder" ? data.source : said.target;
  const columnSide = kind === "decoder" ? said.input : data.source;
  const [rowSpans, columnSpans] = [spansOf(rowSide, units), spansOf(columnSide, units)];
  const merged = mergeWords(tokenWeights(kind, output, layer, head), rowSpans, columnSpans);
  return {
    ...merged,
    rowLabels: labelsOf(rowSide, units),
    columnLabels: labelsOf(columnSide, units),
    isMasked: (row, column) => kind === "decoder" && columnSpans[column][0] >= rowSpans[row][1],
  };
}
