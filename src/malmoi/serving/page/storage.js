// @ts-check
// What this browser remembers, and nothing else does. Without storage (a private window, a full disk) the page works on.

const PREFIX = "malmoi.";

/**
 * @template T
 * @param {string} name
 * @param {T} otherwise what to take where nothing, or nothing readable, is stored
 * @returns {T}
 */
export function recall(name, otherwise) {
  try {
    const found = localStorage.getItem(PREFIX + name);
    return found === null ? otherwise : JSON.parse(found);
  } catch {
    return otherwise;
  }
}

/**
 * @param {string} name
 * @param {unknown} value
 * @returns {boolean} whether it could be stored
 */
export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** @param {string} name */
export function forget(name) {
  try {
    localStorage.removeItem(PREFIX + name);
  } catch {
    // What could not be stored need not be forgotten.
  }
}
