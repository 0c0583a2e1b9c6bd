// @ts-check
// What could stand in a word's place: a list to choose from, by pointer or by keys.

import { percent } from "./confidence.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { useLanguage } from "./language.js";
import { Fault } from "./service.js";

const MARGIN = 8;

/**
 * @param {{
 *   sentence: import("./answer.js").Sentence, word: number, language: string | null, anchor: () => HTMLElement | null,
 *   find: (signal: AbortSignal) => Promise<import("./service.js").Choice[]>,
 *   onChoose: (prefix: string) => void, onClose: () => void,
 * }} props
 */
export function Choices({ sentence, word, language, anchor, find, onChoose, onClose }) {
  const { t } = useLanguage();
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [choices, setChoices] = useState(/** @type {import("./service.js").Choice[] | null} */ (null));
  const [fault, setFault] = useState(/** @type {Fault | null} */ (null));
  const [active, setActive] = useState(0);
  const said = sentence.words[word].text;

  useEffect(() => {
    const control = new AbortController();
    find(control.signal).then(
      (found) => {
        setChoices(found);
        setActive(Math.max(0, found.findIndex((one) => one.text === said)));
      },
      (error) => control.signal.aborted || setFault(error instanceof Fault ? error : new Fault("broken", String(error))),
    );
    return () => control.abort();
  }, []);
  useLayoutEffect(() => placeBelow(box.current, anchor()));
  useEffect(() => box.current?.querySelector("ul")?.focus({ preventScroll: true }), []);
  useEffect(() => box.current?.scrollIntoView({ block: "nearest" }), [choices, fault]);
  useClosing(box, onClose);

  /** @param {any} event */
  function onKeyDown(event) {
    const count = choices?.length ?? 0;
    const moves = { ArrowDown: active + 1, ArrowUp: active - 1, Home: 0, End: count - 1 };
    if (event.key in moves) {
      if (count) setActive((moves[event.key] + count) % count);
    } else if (event.key === "Enter" || event.key === " ") {
      if (choices?.[active]) onChoose(choices[active].prefix);
    } else if (event.key === "Escape" || event.key === "Tab") onClose();
    else return;
    event.preventDefault();
  }

  return html`<div class="choices" ref=${box}>
    <p class="title" id="choices-title">${t("choices-title", { word: said })}</p>
    <ul
      role="listbox" tabindex="-1" aria-labelledby="choices-title" aria-busy=${choices || fault ? undefined : "true"}
      aria-activedescendant=${choices?.length ? `choice-${active}` : undefined} onKeyDown=${onKeyDown}
    >
      ${(choices ?? []).map(
        (one, index) => html`<${Option}
          one=${one} index=${index} language=${language} isActive=${index === active} isSaid=${one.text === said}
          onPoint=${() => setActive(index)} onChoose=${onChoose}
        />`,
      )}
    </ul>
    <p class="soft" role="status">
      ${fault ? t(`fault-${fault.kind}`) : choices === null ? t("choices-coming") : choices.length ? "" : t("choices-none")}
    </p>
  </div>`;
}

function Option({ one, index, language, isActive, isSaid, onPoint, onChoose }) {
  return html`<li
    id=${`choice-${index}`} role="option" class=${isActive ? "active" : ""} aria-selected=${isSaid ? "true" : "false"}
    onMouseMove=${onPoint} onClick=${() => onChoose(one.prefix)}
  >
    <span class="tick" aria-hidden="true">${isSaid ? "✓" : ""}</span>
    <bdi class="text" lang=${language ?? undefined}>${one.text}</bdi>
    <span class="meter" aria-hidden="true"><span style=${{ width: `${Math.max(1, 100 * one.probability)}%` }}></span></span>
    <span class="share">${percent(one.probability)}</span>
  </li>`;
}

/** A press anywhere else closes. */
function useClosing(box, onClose) {
  useEffect(() => {
    /** @param {Event} event */
    const onDown = (event) => box.current?.contains(event.target) || onClose();
    addEventListener("pointerdown", onDown);
    return () => removeEventListener("pointerdown", onDown);
  }, []);
}

/** @param {HTMLElement | null} box @param {HTMLElement | null} word under it, within the window's width */
function placeBelow(box, word) {
  const room = box?.offsetParent?.getBoundingClientRect();
  const at = word?.getBoundingClientRect();
  if (!box || !room || !at) return;
  const right = document.documentElement.clientWidth - box.offsetWidth - MARGIN;
  const isFromRight = word ? getComputedStyle(word).direction === "rtl" : false;
  const wanted = isFromRight ? at.right - box.offsetWidth : at.left;
  const left = Math.max(MARGIN, Math.min(wanted, right));
  box.style.left = `${left - room.left}px`;
  box.style.top = `${at.bottom - room.top + 6}px`;
}
