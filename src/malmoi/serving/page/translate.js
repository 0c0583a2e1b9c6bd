// @ts-check
// The view that translates: both sides, what belongs under them, and what happens between them.

import { Alternatives } from "./alternatives.js";
import { answerText, fitting, sourcesOf, sourceWordAt, targetsOf } from "./answer.js";
import { Explain } from "./explain.js";
import { FaultNote } from "./faults.js";
import { HistoryPanel } from "./history_panel.js";
import { readHistory, remember } from "./history.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { useLanguage } from "./language.js";
import { ModelBar, opposite } from "./models.js";
import { OutputText } from "./output.js";
import { OutputTools } from "./output_tools.js";
import { SourcePane } from "./source.js";
import { keep, recall } from "./storage.js";
import { NOTHING, Translation } from "./translating.js";

/** @typedef {import("./service.js").Offer} Offer */
/** @typedef {import("./source.js").Place} Place */

/** Milliseconds without a key until it is translated. */
const PAUSE = 350;
/** Characters of a text that is waited longer for, and of what must have been pasted. */
const [LONG, PASTED] = [2000, 20];
const HISTORY_PAUSE = 1500;
const NUM_ALTERNATIVES = 4;
const NUM_CHOICES = 8;

/** @type {{sentence: number | null, sources: number[], targets: number[]}} */
const NOWHERE = { sentence: null, sources: [], targets: [] };

/** @param {{service: import("./service.js").Service, offer: Offer, isShown: boolean}} props */
export function TranslateView({ service, offer, isShown }) {
  const { t } = useLanguage();
  const { state, translation, model, text, change } = useDesk(service, offer);
  const marks = useMarks(state, text);
  const [isExplaining, setExplaining] = useState(false);
  const [history, setHistory] = useHistory(state);
  const length = useMemo(() => [...text].length, [text]);
  const isOver = length > offer.limits.characters;

  function onSwap() {
    const other = opposite(offer.models, model);
    if (other) change(state.answer && state.phase === "done" ? answerText(state.answer) : "", other, 0);
  }

  function onClear() {
    change("", model, 0);
    document.getElementById("source")?.focus();
  }

  /** @param {import("./history.js").Entry} entry */
  function onRecall(entry) {
    change(entry.text, offer.models.find((one) => one.name === entry.model) ?? model, 0);
  }

  return html`<main id="translate" hidden=${!isShown} aria-label=${t("translate")}>
    <div class="desk">
      <${ModelBar} models=${offer.models} model=${model} onModel=${(which) => change(text, which, 0)} onSwap=${onSwap} />
      <${SourcePane}
        text=${text} language=${model.source} limit=${offer.limits.characters} length=${length} answer=${state.answer}
        marked=${marks.sources} markedSentence=${marks.sentence} examples=${model.examples ?? []}
        onText=${(anew, isWhole) => change(anew, model, isWhole ? pauseFor(text, anew) : null)}
        onComposing=${translation.drop} onPoint=${marks.pointAtSource} onClear=${onClear}
      />
      <${ResultPane}
        service=${service} model=${model} state=${state} translation=${translation} marks=${marks} isOver=${isOver}
        mostChoices=${offer.limits.alternatives ?? NUM_CHOICES} isExplaining=${isExplaining} onExplain=${() => setExplaining(!isExplaining)}
      />
    </div>
    <div class="below">
      <${Alternatives} state=${state} language=${model.target} onForce=${translation.force} />
      <${HistoryPanel} history=${history} setHistory=${setHistory} models=${offer.models} onRecall=${onRecall} />
    </div>
    ${
      isExplaining &&
      html`<${Explain} service=${service} model=${model} state=${state} sentence=${marks.place?.sentence ?? 0} onClose=${() => setExplaining(false)} />`
    }
    <${Spoken} state=${state} />
  </main>`;
}

/** The side of the output, with its faults and tools. */
function ResultPane({ service, model, state, translation, marks, isOver, mostChoices, isExplaining, onExplain }) {
  const { t } = useLanguage();
  const [shaded, setShaded] = useState(() => recall("shaded", true));

  /** @param {boolean} value */
  function onShaded(value) {
    keep("shaded", value);
    setShaded(value);
  }

  /** @param {Place} place @param {AbortSignal} signal */
  async function findChoices(place, signal) {
    const sentence = state.answer.sentences[place.sentence];
    const before = sentence.target.slice(0, sentence.words[place.word].start);
    const prefix = before.trimEnd();
    const body = { model: model.name, text: sentence.source, prefix, count: Math.min(NUM_CHOICES, mostChoices) };
    return fitting((await service.next(body, signal)).words, before);
  }

  return html`<section class="pane result" aria-label=${t("output")}>
    <${OutputText}
      state=${state} language=${model.target} marked=${marks.targets} markedSentence=${marks.sentence} shaded=${shaded}
      onPoint=${marks.pointAtOutput} findChoices=${findChoices} onForce=${translation.force}
    />
    ${state.fault && !isOver && html`<${FaultNote} fault=${state.fault} retryAt=${state.retryAt} onRetry=${translation.retry} />`}
    <${OutputTools}
      state=${state} shaded=${shaded} isExplaining=${isExplaining} mayExplain=${model.explain} onShaded=${onShaded}
      onUndo=${translation.undo} onExplain=${onExplain}
    />
  </section>`;
}

/** @param {string} before @param {string} now @returns {number} how long to wait for more; what was pasted is whole */
function pauseFor(before, now) {
  if (now.length > before.length + PASTED) return 0;
  return now.length > LONG ? 2 * PAUSE : PAUSE;
}

/** Which model translates which text, and what has come of it. */
function useDesk(service, offer) {
  const [state, setState] = useState(/** @type {import("./translating.js").State} */ (NOTHING));
  const translation = useMemo(() => new Translation(service, setState), [service]);
  const [model, setModel] = useState(() => firstModel(offer));
  const [text, setText] = useState("");
  useEffect(() => translation.stop, [translation]);

  /**
   * @param {string} anew
   * @param {import("./service.js").Model} which
   * @param {number | null} pause until it is translated; `null` while a character is being put together
   */
  function change(anew, which, pause) {
    setText(anew);
    setModel(which);
    keep("model", which.name);
    if (pause === null) return;
    if ([...anew].length > offer.limits.characters) return translation.drop();
    const alternatives = Math.max(1, Math.min(NUM_ALTERNATIVES, offer.limits.alternatives ?? NUM_ALTERNATIVES));
    translation.ask({ model: which.name, text: anew, alternatives }, pause);
  }
  return { state, translation, model, text, change };
}

/** Words that are marked on both sides, because one of them is pointed at; `place` is what was pointed at last. */
function useMarks(state, text) {
  const [found, setFound] = useState(NOWHERE);
  const [place, setPlace] = useState(/** @type {Place | null} */ (null));
  const isCurrent = state.phase === "done" && state.answer?.sourceText === text;
  const clear = () => found === NOWHERE || setFound(NOWHERE);

  return {
    ...(isCurrent ? found : NOWHERE),
    place,
    /** @param {Place | null} at */
    pointAtOutput(at) {
      const sentence = at && state.answer?.sentences[at.sentence];
      if (!at || !sentence) return clear();
      setPlace(at);
      setFound({ sentence: at.sentence, sources: sourcesOf(sentence, at.word), targets: [at.word] });
    },
    /** @param {number | null} offset */
    pointAtSource(offset) {
      const at = offset !== null && isCurrent ? sourceWordAt(state.answer, offset) : null;
      if (!at) return clear();
      const targets = targetsOf(state.answer.sentences[at.sentence], at.word);
      setFound({ sentence: at.sentence, sources: [at.word], targets });
    },
  };
}

/** @param {Offer} offer the model chosen last, or the first one */
function firstModel(offer) {
  const last = recall("model", "");
  return offer.models.find((one) => one.name === last) ?? offer.models[0];
}

/** History, which takes an answer in once it has stood for a moment. */
function useHistory(state) {
  const [history, setHistory] = useState(readHistory);
  const latest = useRef(history);
  latest.current = history;
  useEffect(() => {
    const { answer, wish, phase } = state;
    if (phase !== "done" || !answer || !wish) return undefined;
    const entry = { model: wish.model, text: wish.text, target: answerText(answer) };
    const timer = setTimeout(() => setHistory(remember(latest.current, entry)), HISTORY_PAUSE);
    return () => clearTimeout(timer);
  }, [state.answer, state.phase]);
  return /** @type {const} */ ([history, setHistory]);
}

/** The translation for those who listen: said when it is whole and has stood for a moment. */
function Spoken({ state }) {
  const [said, setSaid] = useState("");
  const isWhole = state.phase === "done" && state.answer;
  useEffect(() => {
    if (!isWhole) return undefined;
    const timer = setTimeout(() => setSaid(answerText(state.answer)), 700);
    return () => clearTimeout(timer);
  }, [state.answer, isWhole]);
  return html`<p class="unseen" role="status">${said}</p>`;
}
