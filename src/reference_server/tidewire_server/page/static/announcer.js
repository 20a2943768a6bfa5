// Announcements for screen readers: the latest status, at most every five seconds.

const INTERVAL = 5_000; // ms

export class Announcer {
  #latest = "";
  #said = "";
  #timer = null;

  /** @param {HTMLElement} element a live region */
  constructor(element) {
    this.element = element;
  }

  announce(text) {
    this.#latest = text;
    if (this.#timer === null) this.#say();
  }

  #say() {
    this.#timer = null;
    if (this.#latest === this.#said) return;
    this.element.textContent = this.#said = this.#latest;
    this.#timer = setTimeout(() => this.#say(), INTERVAL);
  }
}
