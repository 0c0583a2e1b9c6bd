// @ts-check
// What the page asks of the service, and how its faults are told apart.

import { readEvents } from "./events.js";

/**
 * @typedef {object} Model
 * @property {string} name
 * @property {string | null} source code of the language
 * @property {string | null} target
 * @property {string} [source_name]
 * @property {string} [target_name]
 * @property {string} architecture
 * @property {boolean} attention
 * @property {boolean} explain
 * @property {number} parameters
 * @property {string[]} [examples]
 *
 * @typedef {object} Offer what the service has
 * @property {Model[]} models
 * @property {{characters: number, alternatives?: number}} limits
 * @property {boolean} key_required
 * @property {boolean} runs
 *
 * @typedef {{text: string, probability: number, prefix: string}} Choice what could stand at a place
 * @typedef {"offline" | "busy" | "draining" | "key" | "refused" | "broken"} FaultKind
 */

/** Why there is no answer. `wait`: seconds until it is worth asking again, where the service said so. */
export class Fault extends Error {
  /**
   * @param {FaultKind} kind
   * @param {string} message what the service said
   * @param {number | null} [wait]
   */
  constructor(kind, message, wait = null) {
    super(message);
    this.kind = kind;
    this.wait = wait;
  }
}

/** @param {number} status @returns {FaultKind} */
function kindOf(status) {
  if (status === 401 || status === 403) return "key";
  if (status === 429) return "busy";
  if (status === 503) return "draining";
  return status >= 400 && status < 500 ? "refused" : "broken";
}

/** @param {Response} response @returns {Promise<Fault>} */
async function faultOf(response) {
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  const body = await response.json().catch(() => null);
  const message = body?.error?.message;
  return new Fault(
    kindOf(response.status),
    typeof message === "string" ? message : `HTTP ${response.status}`,
    Number.isFinite(wait) ? wait : null,
  );
}

/**
 * @param {() => string} readKey the key of whoever sits here, or ""
 */
export function makeService(readKey) {
  /** @param {string} path @param {AbortSignal} [signal] @param {unknown} [body] @returns {Promise<Response>} */
  async function ask(path, signal, body) {
    /** @type {Record<string, string>} */
    const headers = readKey() ? { Authorization: `Bearer ${readKey()}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Fault("offline", String(error));
    }
    if (!response.ok) throw await faultOf(response);
    return response;
  }

  /** @param {string} path @param {AbortSignal} [signal] @param {unknown} [body] @returns {Promise<any>} */
  async function askJson(path, signal, body) {
    return (await ask(path, signal, body)).json();
  }

  return {
    /** @param {AbortSignal} [signal] @returns {Promise<Offer>} */
    offer: (signal) => askJson("api/models", signal),
    /** @param {object} body @param {AbortSignal} signal @returns {Promise<{words: Choice[]}>} */
    next: (body, signal) => askJson("api/next", signal, body),
    /** @param {object} body @param {AbortSignal} signal @returns {Promise<string>} */
    explain: async (body, signal) => (await ask("api/explain", signal, body)).text(),
    /** @param {AbortSignal} signal @returns {Promise<any>} */
    runs: (signal) => askJson("api/runs", signal),
    /** @param {string} name @param {number} after @param {AbortSignal} signal @returns {Promise<any>} */
    run: (name, after, signal) => askJson(`api/runs/${encodeURIComponent(name)}?after=${after}`, signal),
    /**
     * @param {object} body
     * @param {AbortSignal} signal
     * @returns {AsyncGenerator<{event: string, data: any}>}
     */
    async *stream(body, signal) {
      const response = await ask("api/stream", signal, body);
      if (!response.body) throw new Fault("broken", "an empty answer");
      try {
        for await (const { event, data } of readEvents(response.body)) {
          const value = JSON.parse(data);
          if (event === "error") throw new Fault("broken", value.message);
          yield { event, data: value };
        }
      } catch (error) {
        if (error instanceof Fault || signal.aborted) throw error;
        throw new Fault("offline", String(error));
      }
    },
  };
}

/** @typedef {ReturnType<typeof makeService>} Service */
