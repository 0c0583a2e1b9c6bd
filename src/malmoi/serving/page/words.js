// @ts-check
// Two texts compared word by word.

/**
 * A text in pieces; marked is what another text does not have at that place (longest common subsequence of words).
 * @param {string} text
 * @param {string} other
 * @returns {{text: string, marked: boolean}[]}
 */
export function differences(text, other) {
  const [ours, theirs] = [text.split(/(\s+)/), other.split(/\s+/)];
  const words = ours.filter((_, index) => index % 2 === 0);
  const common = commonPlaces(words, theirs);
  return ours
    .map((piece, index) => ({ text: piece, marked: index % 2 === 0 && piece !== "" && !common.has(index / 2) }))
    .filter((piece) => piece.text !== "");
}

/** @param {string[]} ours @param {string[]} theirs @returns {Set<number>} places of ours that both have, in order */
function commonPlaces(ours, theirs) {
  const lengths = Array.from({ length: ours.length + 1 }, () => new Uint16Array(theirs.length + 1));
  for (let i = ours.length - 1; i >= 0; i--) {
    for (let j = theirs.length - 1; j >= 0; j--) {
      lengths[i][j] =
        ours[i] === theirs[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  /** @type {Set<number>} */
  const places = new Set();
  for (let i = 0, j = 0; i < ours.length && j < theirs.length; ) {
    if (ours[i] === theirs[j]) {
      places.add(i++);
      j++;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return places;
}
