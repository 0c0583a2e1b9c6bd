// @ts-check
// Server-sent events of a response, read as they come (HTML Standard, section 9.2).

/**
 * @typedef {object} ServerEvent
 * @property {string} event
 * @property {string} data
 */

/**
 * Takes pieces of text, cut anywhere, and gives the events that they complete.
 * @returns {(piece: string) => ServerEvent[]}
 */
export function eventParser() {
  let rest = "";
  let name = "";
  /** @type {string[]} */
  let lines = [];

  /** @param {string} line @returns {ServerEvent[]} */
  function read(line) {
    if (line === "") {
      const done = lines.length ? [{ event: name || "message", data: lines.join("\n") }] : [];
      [name, lines] = ["", []];
      return done;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    if (field === "data") lines.push(value);
    return [];
  }

  return (piece) => {
    rest += piece;
    /** @type {ServerEvent[]} */
    const events = [];
    // A return at the very end may be half of a line's end: it waits for what follows.
    for (let found; (found = /\r\n|\n|\r(?!$)/.exec(rest)); ) {
      const line = rest.slice(0, found.index);
      rest = rest.slice(found.index + found[0].length);
      events.push(...read(line));
    }
    return events;
  };
}

/**
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<ServerEvent>}
 */
export async function* readEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const push = eventParser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
