// @ts-check
// Whole other outputs of a sentence, best first, with what differs marked.

import { html } from "./html.js";
import { useLanguage } from "./language.js";
import { differences } from "./words.js";

/** @param {{state: import("./translating.js").State, language: string | null, onForce: (sentence: number, prefix: string) => void}} props */
export function Alternatives({ state, language, onForce }) {
  const { t } = useLanguage();
  const sentences = state.answer?.sentences ?? [];
  const some = sentences.flatMap((one, index) => (one.alternatives.length ? [{ one, index }] : []));
  if (!some.length) return null;
  const isCurrent = state.phase === "done";
  return html`<section class="card alternatives" aria-labelledby="alternatives-title">
    <h2 id="alternatives-title">${t("alternatives")}</h2>
    ${
      sentences.length === 1
        ? html`<${List} ...${some[0]} language=${language} isCurrent=${isCurrent} onForce=${onForce} />`
        : html`<div class="many">
            ${some.map(
              ({ one, index }) => html`<details key=${index}>
                <summary><bdi lang=${language ?? undefined}>${one.target}</bdi></summary>
                <${List} one=${one} index=${index} language=${language} isCurrent=${isCurrent} onForce=${onForce} />
              </details>`,
            )}
          </div>`
    }
    <p class="soft">${t("alternatives-text")}</p>
  </section>`;
}

function List({ one, index, language, isCurrent, onForce }) {
  const { t, number } = useLanguage();
  return html`<ol>
    ${one.alternatives.map(
      (other) => html`<li>
        <button type="button" dir="auto" disabled=${!isCurrent} onClick=${() => onForce(index, other.text)}>
          <span lang=${language ?? undefined}>${differences(other.text, one.target).map((piece) => (piece.marked ? html`<mark>${piece.text}</mark>` : piece.text))}</span>
          ${
            other.score !== null &&
            html`<span class="score" title=${t("score")}><span class="unseen">${t("score")} </span>${number(other.score, 2)}</span>`
          }
        </button>
      </li>`,
    )}
  </ol>`;
}
