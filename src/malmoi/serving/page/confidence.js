// @ts-check
// How sure the model was of a word: four steps, told apart by shade and by the line under the word.

/** Each step with the least probability that belongs to it. */
export const STEPS = /** @type {const} */ ([
  { name: "sure", least: 0.9 },
  { name: "fair", least: 0.6 },
  { name: "unsure", least: 0.3 },
  { name: "guess", least: 0 },
]);

/** @param {number} probability @returns {"sure" | "fair" | "unsure" | "guess"} */
export function stepOf(probability) {
  return (STEPS.find((one) => probability >= one.least) ?? STEPS[3]).name;
}

/**
 * @param {number} probability
 * @returns {string} in per cent; what is not certain is never called 100 %
 */
export function percent(probability) {
  if (probability > 0.995 && probability < 1) return "> 99 %";
  if (probability < 0.005) return "< 1 %";
  return `${Math.round(100 * probability)} %`;
}
