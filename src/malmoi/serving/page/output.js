// @ts-check
// The output side: words that say how sure the model was of them, and that can be exchanged.

import { pieces } from "./answer.js";
import { Choices } from "./choices.js";
import { percent, stepOf } from "./confidence.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { useLanguage } from "./language.js";

/** @typedef {import("./answer.js").Answer} Answer */
/** @typedef {import("./source.js").Place} Place */

/** Sentences that may be written over while they come, and characters by which a text is known to be the same one. */
const [CALM, SAME_BEGINNING] = [3, 40];

/**
 * @param {{
 *   state: import("./translating.js").State, language: string | null, marked: number[], markedSentence: number | null,
 *   shaded: boolean, onPoint: (place: Place | null) => void,
 *   findChoices: (place: Place, signal: AbortSignal) => Promise<import("./service.js").Choice[]>,
 *   onForce: (sentence: number, prefix: string) => void,
 * }} props
 */
export function OutputText(props) {
  const { state, language } = props;
  const { t } = useLanguage();
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const [open, setOpen] = useState(/** @type {Place | null} */ (null));
  const [current, setCurrent] = useState({ sentence: 0, word: 0 });
  const goBack = useRef(false);
  const isWhole = state.phase === "done" && state.answer !== null;

  // After a choice the words are other ones: whoever came by keys goes on where they were.
  useEffect(() => {
    if (!isWhole || !goBack.current) return;
    goBack.current = false;
    wordElement(root.current, current)?.focus();
  }, [state.answer, isWhole]);
  useEffect(() => setOpen(null), [state.phase, state.answer]);

  /** @param {Place} place */
  function onOpen(place) {
    setCurrent(place);
    setOpen(place);
  }

  function onClose() {
    setOpen(null);
    wordElement(root.current, current)?.focus();
  }

  const isBusy = state.phase === "waiting" || state.phase === "coming";
  return html`<div class=${isBusy ? "output-room busy" : "output-room"} ref=${root}>
    <div
      id="output" class=${`output ${props.shaded ? "shaded" : ""}`} dir="auto" lang=${language ?? undefined} role="group"
      aria-label=${t("output-words")} aria-busy=${isBusy ? "true" : undefined}
      onMouseLeave=${() => props.onPoint(null)}
    >
      ${
        showsWords(state)
          ? html`<span class=${isWhole ? "" : "stale"}><${Words} ...${props} open=${open} current=${current} onOpen=${onOpen} setCurrent=${setCurrent} /></span>`
          : html`<${Coming} state=${state} />`
      }
    </div>
    ${
      open &&
      isWhole &&
      html`<${Choices}
        key=${`${open.sentence}.${open.word}`} sentence=${state.answer?.sentences[open.sentence]} word=${open.word}
        language=${language} anchor=${() => wordElement(root.current, open)} find=${(signal) => props.findChoices(open, signal)}
        onClose=${onClose}
        onChoose=${(prefix) => {
          goBack.current = true;
          setOpen(null);
          props.onForce(open.sentence, prefix);
        }}
      />`
    }
  </div>`;
}

/** @param {HTMLElement | null} root @param {Place} place @returns {HTMLElement | null} */
function wordElement(root, place) {
  return root?.querySelector(`[data-place="${place.sentence}.${place.word}"]`) ?? null;
}

/**
 * Whether the last answer is still shown: until something of the next one is there, and, where a long text only goes on,
 * until all of it is, since its sentences come side by side.
 * @param {import("./translating.js").State} state
 */
function showsWords({ answer, soFar, wish }) {
  if (!answer) return false;
  const goesOn = wish?.text.slice(0, SAME_BEGINNING) === answer.sourceText.slice(0, SAME_BEGINNING);
  return soFar === null || (goesOn && answer.sentences.length > CALM);
}

/** What has come so far, and what stood there before, faded, until it is overwritten. */
function Coming({ state }) {
  const { t } = useLanguage();
  const old = state.answer ? state.answer.sentences.map((one) => one.gap + one.target).join("") : "";
  const soFar = state.soFar ?? "";
  if (!soFar && !old) {
    return html`<span class="placeholder">${state.phase === "idle" || state.phase === "failed" ? t("output-placeholder") : t("coming")}</span>`;
  }
  return html`<span>${soFar}</span><span class="ghost" aria-hidden=${soFar ? "true" : undefined}>${old.slice(soFar.length)}</span>`;
}

function Words(props) {
  const { state, marked, markedSentence, current, setCurrent, open, onOpen, onPoint } = props;
  const { sentences, tail } = state.answer;

  /** @param {any} event */
  function onKeyDown(event) {
    const places = sentences.flatMap((one, sentence) => one.words.map((_, word) => ({ sentence, word })));
    const here = places.findIndex((one) => one.sentence === current.sentence && one.word === current.word);
    const isFromRight = getComputedStyle(event.currentTarget.parentElement).direction === "rtl";
    const forward = isFromRight ? "ArrowLeft" : "ArrowRight";
    const back = isFromRight ? "ArrowRight" : "ArrowLeft";
    const moves = { [forward]: here + 1, [back]: here - 1, Home: 0, End: places.length - 1 };
    const place = places[moves[event.key]];
    if (event.key === "Enter" || event.key === " " || event.key === "ArrowDown") onOpen(current);
    else if (place) {
      setCurrent(place);
      wordElement(event.currentTarget, place)?.focus();
    } else if (!(event.key in moves)) return;
    event.preventDefault();
  }

  const first = sentences.findIndex((one) => one.words.length);
  const known = sentences[current.sentence]?.words[current.word] ? current : { sentence: first, word: 0 };
  return html`<span onKeyDown=${onKeyDown}
    >${sentences.map(
      (sentence, index) =>
        html`${sentence.gap}${pieces(sentence).map(({ text, word }) =>
          word === null
            ? text
            : html`<${OutputWord}
                text=${text} probability=${sentence.words[word].probability} place=${{ sentence: index, word }}
                isChosen=${sentence.forced > 0 && isLastForced(sentence, word)}
                isOn=${index === markedSentence && marked.includes(word)}
                isOpen=${open?.sentence === index && open.word === word}
                isStop=${known.sentence === index && known.word === word}
                onOpen=${onOpen} onPoint=${onPoint} setCurrent=${setCurrent}
              />`,
        )}`,
    )}${tail}</span
  >`;
}

/** @param {import("./answer.js").Sentence} sentence @param {number} word @returns {boolean} whether it was the user's choice */
function isLastForced(sentence, word) {
  // A sentence that was chosen as a whole has no chosen word.
  if (sentence.forced === sentence.target.length) return false;
  const { start } = sentence.words[word];
  const after = sentence.words[word + 1];
  return start < sentence.forced && (!after || after.start >= sentence.forced);
}

function OutputWord({ text, probability, place, isChosen, isOn, isOpen, isStop, onOpen, onPoint, setCurrent }) {
  const { t } = useLanguage();
  const share = percent(probability);
  const classes = ["word", stepOf(probability), isOn ? "on" : "", isChosen ? "chosen" : ""].join(" ");
  const point = () => onPoint(place);

  function onClick() {
    // Whoever marks a passage to copy it asks for no other words.
    if (getSelection()?.isCollapsed ?? true) onOpen(place);
  }

  return html`<span
    class=${classes} role="button" tabindex=${isStop ? 0 : -1} data-place=${`${place.sentence}.${place.word}`}
    data-share=${share} aria-haspopup="listbox" aria-expanded=${isOpen ? "true" : "false"}
    aria-label=${t(isChosen ? "word-chosen" : "word-label", { word: text, share })}
    onClick=${onClick} onMouseEnter=${point} onBlur=${() => isOpen || onPoint(null)}
    onFocus=${() => {
      setCurrent(place);
      point();
    }}
    >${text}</span
  >`;
}
