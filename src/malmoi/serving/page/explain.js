// @ts-check
// The page of `malmoi explain` for the sentence at hand, in a frame that may draw and nothing else.

import { FaultNote } from "./faults.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { useLanguage } from "./language.js";
import { Fault } from "./service.js";

/**
 * @param {{
 *   service: import("./service.js").Service, model: import("./service.js").Model,
 *   state: import("./translating.js").State, sentence: number, onClose: () => void,
 * }} props
 */
export function Explain({ service, model, state, sentence, onClose }) {
  const { t, code } = useLanguage();
  const [chosen, setChosen] = useState(sentence);
  const [page, setPage] = useState(/** @type {string | null} */ (null));
  const [fault, setFault] = useState(/** @type {Fault | null} */ (null));
  const [tries, setTries] = useState(0);
  const sentences = state.answer?.sentences ?? [];
  const one = sentences[Math.min(chosen, sentences.length - 1)];
  const text = state.phase === "done" && one ? one.source : "";

  useEffect(() => {
    if (!text) return undefined;
    const control = new AbortController();
    setFault(null);
    service.explain({ model: model.name, text, language: code }, control.signal).then(setPage, (error) => {
      if (control.signal.aborted) return;
      setPage(null);
      setFault(error instanceof Fault ? error : new Fault("broken", String(error)));
    });
    return () => {
      control.abort();
      setPage(null);
    };
  }, [text, model.name, code, tries]);

  // It may lie below what is seen: whoever asked for it is led there.
  const room = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => room.current?.scrollIntoView({ block: "start" }), []);

  return html`<section class="card explain" ref=${room} aria-labelledby="explain-title">
    <div class="bar">
      <h2 id="explain-title">${t("explain-title")}</h2>
      <button type="button" class="plain" onClick=${onClose}>${t("close")}</button>
    </div>
    ${
      sentences.length > 1 &&
      html`<label><span class="soft">${t("sentence")}</span>${" "}
        <select id="explain-sentence" value=${chosen} onChange=${(event) => setChosen(Number(event.currentTarget.value))}>
          ${sentences.map((each, index) => html`<option value=${index} selected=${index === chosen}>${index + 1}. ${each.source}</option>`)}
        </select></label>`
    }
    ${text && one.forced > 0 && html`<p class="soft">${t("explain-forced")}</p>`}
    ${fault && html`<${FaultNote} fault=${fault} onRetry=${() => setTries(tries + 1)} />`}
    <p class="soft" role="status">${!page && !fault ? t(text ? "explain-coming" : "explain-waiting") : ""}</p>
    ${page && html`<iframe title=${t("explain-title")} sandbox="allow-scripts" srcdoc=${page}></iframe>`}
  </section>`;
}
