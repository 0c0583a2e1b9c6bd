// @ts-check
// An answer of the service as the page keeps it: sentences that can be replaced one by one.
// Offsets count UTF-16 code units: words from the start of their sentence's output, source words in the whole request.

/**
 * @typedef {object} Word
 * @property {string} text
 * @property {number} probability
 * @property {number} start
 * @property {number} end
 *
 * @typedef {object} Sentence
 * @property {string} gap what stands between the sentence before and this one
 * @property {string} source
 * @property {number} sourceStart
 * @property {string} target
 * @property {number | null} score `null` where the model was not asked
 * @property {Word[]} words
 * @property {{text: string, start: number, end: number}[]} sourceWords
 * @property {[number, number][]} alignment source word, output word
 * @property {{text: string, score: number | null}[]} alternatives
 * @property {boolean} finished whether the model came to an end
 * @property {number} forced how many characters of the output were asked for
 *
 * @typedef {object} Answer
 * @property {string} sourceText the request's text, to which offsets of source words belong
 * @property {Sentence[]} sentences
 * @property {string} tail
 * @property {string[]} notes
 */

/**
 * @param {any} wire an answer of the service
 * @param {string} sourceText
 * @returns {Answer}
 */
export function readAnswer(wire, sourceText) {
  let end = 0;
  const sentences = wire.sentences.map((/** @type {any} */ one) => {
    const gap = wire.text.slice(end, one.target_start);
    end = one.target_start + one.target.length;
    return readSentence(one, gap);
  });
  return { sourceText, sentences, tail: wire.text.slice(end), notes: wire.notes ?? [] };
}

/** @param {any} one @param {string} gap @returns {Sentence} */
function readSentence(one, gap) {
  const words = (one.words ?? []).map((/** @type {any} */ word) => ({
    text: word.text,
    probability: word.probability,
    start: word.start - one.target_start,
    end: word.end - one.target_start,
  }));
  return {
    gap,
    source: one.source,
    sourceStart: one.source_start,
    target: one.target,
    score: one.score,
    words,
    sourceWords: one.source_words ?? [],
    alignment: one.alignment ?? [],
    alternatives: one.alternatives.filter((/** @type {any} */ other) => other.text !== one.target),
    finished: one.finished,
    forced: 0,
  };
}

/** @param {Answer} answer @returns {string} */
export function answerText(answer) {
  return answer.sentences.map((one) => one.gap + one.target).join("") + answer.tail;
}

/**
 * The answer with one sentence translated anew.
 * @param {Answer} answer
 * @param {number} index
 * @param {any} wire the service's answer to that sentence's source alone
 * @param {string} prefix how its output had to begin
 * @returns {Answer}
 */
export function replaceSentence(answer, index, wire, prefix) {
  const old = answer.sentences[index];
  const anew = readAnswer(wire, old.source).sentences.map((one, place) => ({
    ...one,
    gap: place === 0 ? old.gap : one.gap,
    sourceStart: one.sourceStart + old.sourceStart,
    sourceWords: one.sourceWords.map((word) => ({
      ...word,
      start: word.start + old.sourceStart,
      end: word.end + old.sourceStart,
    })),
    forced: place === 0 ? prefix.length : 0,
  }));
  return { ...answer, sentences: [...answer.sentences.slice(0, index), ...anew, ...answer.sentences.slice(index + 1)] };
}

/**
 * An output cut into what stands between words and the words: together they are the output again.
 * @param {Sentence} sentence
 * @returns {{text: string, word: number | null}[]}
 */
export function pieces(sentence) {
  /** @type {{text: string, word: number | null}[]} */
  const found = [];
  let end = 0;
  sentence.words.forEach((word, index) => {
    if (word.start > end) found.push({ text: sentence.target.slice(end, word.start), word: null });
    found.push({ text: sentence.target.slice(word.start, word.end), word: index });
    end = word.end;
  });
  if (end < sentence.target.length) found.push({ text: sentence.target.slice(end), word: null });
  return found;
}

/**
 * Choices that are words of their own where the one that was said is: others would only go on with the word before.
 * @template {{text: string, prefix: string}} T
 * @param {T[]} choices
 * @param {string} before what stands before the word, with the space behind it
 * @returns {T[]} each text once
 */
export function fitting(choices, before) {
  const texts = new Set();
  return choices.filter((one) => {
    const isNew = one.prefix.startsWith(before) && !texts.has(one.text);
    texts.add(isNew ? one.text : null);
    return isNew;
  });
}

/** @param {Sentence} sentence @param {number} word @returns {number[]} the source words that an output word goes with */
export function sourcesOf(sentence, word) {
  return sentence.alignment.filter(([, target]) => target === word).map(([source]) => source);
}

/** @param {Sentence} sentence @param {number} word @returns {number[]} the output words that a source word goes with */
export function targetsOf(sentence, word) {
  return sentence.alignment.filter(([source]) => source === word).map(([, target]) => target);
}

/**
 * Which sentence and source word stand at a place of the request.
 * @param {Answer} answer
 * @param {number} offset
 * @returns {{sentence: number, word: number} | null}
 */
export function sourceWordAt(answer, offset) {
  for (const [sentence, one] of answer.sentences.entries()) {
    const word = one.sourceWords.findIndex(({ start, end }) => start <= offset && offset < end);
    if (word >= 0) return { sentence, word };
  }
  return null;
}
