// @ts-check
// How sure the model was of a word: four steps, told apart by shade and by the line under the word. A model that was
// trained with label smoothing is never surer than about 93 %: the first step takes that in.

/** Each step with the least probability that belongs to it. */
export const STEPS = /** @type {const} */ ([
  { name: "sure", least: 0.8 },
  { name: "fair", least: 0.5 },
  { name: "unsure", least: 0.25 },
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
  if (probability < 0.0005) return "< 0.1 %";
  return probability < 0.01 ? `${(100 * probability).toFixed(1)} %` : `${Math.round(100 * probability)} %`;
}
