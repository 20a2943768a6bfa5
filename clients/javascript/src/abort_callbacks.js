/** Callbacks of abort signals. Node warns of a leak if a signal has more than ten listeners, but one signal may end many jobs. */

/** @type {WeakMap<AbortSignal, Set<() => void>>} */
const CALLBACKS = new WeakMap();

/**
 * Call a function when a signal aborts, through the only listener that this package adds to the signal.
 * @param {AbortSignal | undefined} signal @param {() => void} callback @returns {() => void} A function that removes the callback.
 */
export function onAbort(signal, callback) {
  if (!signal) return () => {};
  const callbacks = CALLBACKS.get(signal) ?? new Set();
  if (!CALLBACKS.has(signal)) {
    CALLBACKS.set(signal, callbacks);
    signal.addEventListener("abort", () => callbacks.forEach((each) => each()), { once: true });
  }
  callbacks.add(callback);
  return () => callbacks.delete(callback);
}
