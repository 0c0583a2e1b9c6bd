// @ts-check
// One translation at a time: waits until the typing pauses, drops what is no longer wanted, shows what is there so far,
// and tries again where the service asks for patience.

import { answerText, readAnswer, replaceSentence } from "./answer.js";
import { Fault } from "./service.js";

/** @typedef {import("./answer.js").Answer} Answer */

const MOST_TRIES = 4;
const LONGEST_WAIT = 60;

/**
 * @typedef {object} Wish
 * @property {string} model
 * @property {string} text
 * @property {number} alternatives
 *
 * @typedef {"idle" | "waiting" | "coming" | "done" | "failed"} Phase
 *
 * @typedef {object} State
 * @property {Phase} phase
 * @property {Wish | null} wish what was asked for last
 * @property {Answer | null} answer the last whole answer
 * @property {string | null} soFar what has come of the next one
 * @property {Fault | null} fault
 * @property {number | null} retryAt when it will be tried again, in milliseconds of the clock
 * @property {Answer[]} earlier answers before words were chosen, last one last
 */

/** @type {State} */
export const NOTHING = { phase: "idle", wish: null, answer: null, soFar: null, fault: null, retryAt: null, earlier: [] };

export class Translation {
  /**
   * @param {import("./service.js").Service} service
   * @param {(state: State) => void} onChange
   */
  constructor(service, onChange) {
    this.service = service;
    this.onChange = onChange;
    this.state = NOTHING;
    this.timer = 0;
    this.running = new AbortController();
    /** @type {() => void} */
    this.again = () => {};
  }

  /** @param {Partial<State>} changes */
  set(changes) {
    this.state = { ...this.state, ...changes };
    this.onChange(this.state);
  }

  /** Whatever is waited for or comes in is dropped. */
  stop = () => {
    clearTimeout(this.timer);
    this.running.abort();
    this.running = new AbortController();
  };

  /** The same, and what was there before is shown again. */
  drop = () => {
    this.stop();
    this.set({ phase: this.state.answer ? "done" : "idle", soFar: null, fault: null, retryAt: null });
  };

  /** @param {number} delay @param {(signal: AbortSignal) => Promise<void>} work @param {number} [tries] */
  start(delay, work, tries = 1) {
    this.stop();
    const { signal } = this.running;
    this.again = () => this.start(0, work);
    this.set({ phase: "waiting", fault: null, retryAt: null });
    this.timer = setTimeout(async () => {
      try {
        await work(signal);
      } catch (error) {
        if (!signal.aborted) this.fail(error, work, tries);
      }
    }, delay);
  }

  /** @param {unknown} error @param {(signal: AbortSignal) => Promise<void>} work @param {number} tries */
  fail(error, work, tries) {
    const fault = error instanceof Fault ? error : new Fault("broken", String(error));
    // Without a network nothing can be tried until there is one, which is told to the page.
    const mayPass = ["busy", "draining"].includes(fault.kind) || (fault.kind === "offline" && navigator.onLine);
    if (!mayPass || tries >= MOST_TRIES) return this.set({ phase: "failed", fault, soFar: null, retryAt: null });
    const wait = 1000 * Math.min(fault.wait ?? 2 ** tries, LONGEST_WAIT);
    this.start(wait, work, tries + 1);
    this.set({ phase: "failed", fault, soFar: null, retryAt: Date.now() + wait });
  }

  /**
   * @param {object} body
   * @param {AbortSignal} signal
   * @param {(text: string) => void} onPart what has come so far
   * @returns {Promise<any>} the whole answer, or `null` where nobody waits for it any more
   */
  async stream(body, signal, onPart) {
    /** @type {string[]} */
    const parts = [];
    this.set({ phase: "coming", fault: null, retryAt: null });
    for await (const { event, data } of this.service.stream(body, signal)) {
      if (signal.aborted) return null;
      if (event === "done") return data;
      parts[data.sentence] = data.gap + (event === "sentence" ? data.target : data.text);
      onPart(parts.join(""));
    }
    throw new Fault("offline", "the answer broke off");
  }

  /** @param {Wish} wish @param {number} delay milliseconds without another wish until it is asked for */
  ask(wish, delay) {
    if (wish.text.trim() === "") {
      this.stop();
      return this.set(NOTHING);
    }
    this.set({ wish });
    this.start(delay, async (signal) => {
      const body = { model: wish.model, text: wish.text, n_best: wish.alternatives, details: true };
      const wire = await this.stream(body, signal, (soFar) => this.set({ soFar }));
      if (wire) this.set({ phase: "done", answer: readAnswer(wire, wish.text), soFar: null, earlier: [] });
    });
  }

  /**
   * Another output of one sentence: one that begins with `prefix`.
   * @param {number} index
   * @param {string} prefix
   */
  force = (index, prefix) => {
    const { answer, wish } = this.state;
    if (!answer || !wish) return;
    this.start(0, async (signal) => {
      const { source } = answer.sentences[index];
      const body = { model: wish.model, text: source, prefix, n_best: wish.alternatives, details: true };
      const wire = await this.stream(body, signal, (target) => {
        const sentences = answer.sentences.map((one, place) => (place === index ? { ...one, target } : one));
        this.set({ soFar: answerText({ ...answer, sentences }) });
      });
      if (!wire) return;
      const anew = replaceSentence(answer, index, wire, prefix);
      this.set({ phase: "done", answer: anew, soFar: null, earlier: [...this.state.earlier, answer] });
    });
  };

  /** Back to the answer before the last choice. */
  undo = () => {
    const answer = this.state.earlier.at(-1);
    if (!answer) return;
    this.stop();
    const earlier = this.state.earlier.slice(0, -1);
    this.set({ phase: "done", answer, soFar: null, fault: null, retryAt: null, earlier });
  };

  /** What failed once more, at once. */
  retry = () => this.again();
}
