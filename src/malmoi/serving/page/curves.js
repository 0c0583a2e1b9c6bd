// @ts-check
// What the charts of runs are made of: which numbers there are, by what they are drawn, and in which colours.

/** @typedef {import("./watch.js").Row} Row */
/** @typedef {import("./watch.js").Record_} Record_ */

/** What a row says of the place it belongs to, and not of how well it goes. */
const PLACES = new Set(["step", "epoch", "target_tokens", "seconds"]);
export const AXES = /** @type {const} */ (["step", "target_tokens", "seconds"]);

const FIRST_CHOICES = [["loss"], ["valid_bleu", "valid_exact_match", "valid_chrf", "valid_loss"]];

/** Colours by light and dark, told apart by people of every colour vision together with the dashes. */
export const COLORS = {
  light: ["#0b62c4", "#b3540a", "#116329", "#8250df", "#a3174b", "#59636e"],
  dark: ["#79b8ff", "#ff9d5c", "#56d364", "#c297ff", "#ff8fab", "#9fa8b3"],
};
export const DASHES = [[], [8, 4], [2, 3], [10, 4, 2, 4], [14, 4], [5, 2]];
export const MOST_RUNS = COLORS.light.length;

/** @param {Iterable<Record_>} records @returns {string[]} every metric of any of them */
export function metricsOf(records) {
  /** @type {Set<string>} */
  const names = new Set();
  for (const { rows } of records) for (const row of rows) for (const name of Object.keys(row)) names.add(name);
  return [...names].filter((one) => !PLACES.has(one)).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

/** @param {string} name validation first, then what was measured while training */
function rank(name) {
  const order = ["loss", "valid_loss", "valid_bleu"];
  const place = order.indexOf(name);
  return place >= 0 ? place : name.startsWith("valid_") ? 10 : 20;
}

/** @param {string[]} metrics @returns {string[]} those to begin with */
export function firstMetrics(metrics) {
  return FIRST_CHOICES.flatMap((names) => names.find((one) => metrics.includes(one)) ?? []);
}

/**
 * The curve of one run.
 * @param {Row[]} rows
 * @param {string} metric
 * @param {string} axis
 * @returns {[number[], number[]]} places in rising order, each once, and values
 */
export function curve(rows, metric, axis) {
  /** @type {Map<number, number>} */
  const found = new Map();
  for (const row of rows) {
    if (Number.isFinite(row[metric]) && Number.isFinite(row[axis])) found.set(row[axis], row[metric]);
  }
  const places = [...found.keys()].sort((a, b) => a - b);
  return [places, places.map((one) => /** @type {number} */ (found.get(one)))];
}

/** @param {string} metric @returns {boolean} whether less is better */
export function isLessBetter(metric) {
  return /loss|nll|perplexity|error|ter$|seconds/.test(metric);
}

/**
 * @param {Row[]} rows
 * @param {string} metric
 * @returns {{best: number, at: number, last: number} | null}
 */
export function summary(rows, metric) {
  const [steps, values] = curve(rows, metric, "step");
  if (!values.length) return null;
  const best = isLessBetter(metric) ? Math.min(...values) : Math.max(...values);
  return { best, at: steps[values.indexOf(best)], last: values[values.length - 1] };
}

/**
 * Settings as one flat list of names and values.
 * @param {unknown} value
 * @param {string} [name]
 * @returns {[string, string][]}
 */
export function flatten(value, name = "") {
  const isTable = typeof value === "object" && value !== null && !(Array.isArray(value) && value.every(isPlain));
  if (!isTable) return [[name, typeof value === "string" ? value : JSON.stringify(value)]];
  return Object.entries(/** @type {object} */ (value)).flatMap(([key, inner]) =>
    flatten(inner, name ? `${name}.${key}` : key),
  );
}

/** @param {unknown} value */
function isPlain(value) {
  return typeof value !== "object" || value === null;
}
