// Elements, formatting and the clipboard. Text enters the document only as text: the content security policy forbids
// every conversion of a string to HTML.

/**
 * Create an element.
 * @param {string} tag
 * @param {Record<string, unknown>} props `class`, `text`, `on` (listeners by event), and attributes; false and null are absent
 * @param {...(Node | string | null | undefined | false)} children
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") element.textContent = String(value);
    else if (name === "on") for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set the text of an element, unless it is there already: a write would cost a layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Call `draw` before the next frame, however often the returned function is called until then. */
export function onNextFrame(draw) {
  let requested = false, notBefore = 0;
  const run = () => {
    const begun = performance.now();
    if (begun < notBefore) return void requestAnimationFrame(run);
    requested = false;
    draw();
    // Leave three quarters of the time to the stream, the scrolling and the clicks.
    notBefore = begun + 4 * (performance.now() - begun);
  };
  return () => {
    if (!requested) requestAnimationFrame(run);
    requested = true;
  };
}

export const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** A count with its noun, as in `2 tokens`. */
export const counted = (n, noun) => `${number.format(n)} ${noun}${n === 1 ? "" : "s"}`;

export function duration(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function bytes(n) {
  const unit = n < 1024 ? 0 : n < 1024 ** 2 ? 1 : n < 1024 ** 3 ? 2 : 3;
  return `${number.format(n / 1024 ** unit)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
}

export function probability(logprob) {
  const percent = 100 * Math.exp(logprob ?? -Infinity);
  return percent >= 99.95 ? "100 %" : percent >= 9.95 ? `${percent.toFixed(0)} %` : percent >= 0.095 ? `${percent.toFixed(1)} %` : "< 0.1 %";
}

/** The surprise of a token in bits; a log-probability of null means probability 0. */
export const surprise = (logprob) => (logprob === null ? Infinity : -logprob / Math.LN2);

/** A button that copies what `read` returns. */
export function copyButton(label, read) {
  const button = h("button", { type: "button", class: "small", text: label });
  button.addEventListener("click", async () => {
    const copied = await copy(read()).then(() => "Copied", () => "Not copied");
    button.textContent = copied;
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP, a browser offers the clipboard only to a selection.
  const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser refused");
}

/** Let a copied selection within an element be its exact text, without the line breaks of the blocks that it is cut into. */
export function copiesExactText(element) {
  element.addEventListener("copy", (event) => {
    const range = getSelection()?.rangeCount ? getSelection().getRangeAt(0) : null;
    if (range === null || range.collapsed || !element.contains(range.commonAncestorContainer)) return;
    event.clipboardData.setData("text/plain", range.toString());
    event.preventDefault();
  });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "a" || !(event.ctrlKey || event.metaKey) || event.target.tagName === "INPUT") return;
    getSelection().selectAllChildren(element);
    event.preventDefault();
  });
}

/** Keep the end of a scrolling element in view while it grows, unless its reader has scrolled away from the end. */
export function followsItsEnd(element) {
  let atEnd = true, before = 0;
  const toEnd = () => atEnd && (element.scrollTop = element.scrollHeight);
  element.addEventListener("scroll", () => {
    // A block gets its height when it comes into view, which moves the end away although the reader has not scrolled.
    atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40 || (atEnd && element.scrollTop >= before);
    before = element.scrollTop;
  }, { passive: true });
  element.addEventListener("contentvisibilityautostatechange", toEnd);
  return toEnd;
}
