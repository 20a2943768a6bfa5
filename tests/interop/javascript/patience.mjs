// How long a client waits, and how often it tries (section 13.3).

const LONGEST_WAIT_MS = 30_000;
const MAX_STRANGE_ANSWERS = 10; // TW-CLI-043

/** So many failures in a row that the user wanted no more. */
export class GivenUp extends Error {}

/** Failures in a row, and the wait that they lead to. */
export class Patience {
  #failures = 0;
  #strange = 0;

  constructor({ baseMs = 1000, maxFailures = Infinity, random = Math.random, sleep = pause }) {
    Object.assign(this, { baseMs, maxFailures, random, sleep });
  }

  /** A connection did what it should. */
  wellOpened() {
    this.#strange = 0;
  }

  progress() {
    this.#failures = 0;
  }

  strangeAnswer(error) {
    this.#strange += 1;
    if (this.#strange > MAX_STRANGE_ANSWERS) throw error;
  }

  async afterFailure(leastMs = 0) {
    this.#failures += 1;
    if (this.#failures > this.maxFailures) throw new GivenUp(`${this.maxFailures} failures in a row`);
    const grown = Math.min(LONGEST_WAIT_MS, this.baseMs * 2 ** (this.#failures - 1)) * (0.5 + this.random());
    await this.sleep(Math.max(leastMs * (1 + this.random() / 2), grown));
  }

  async afterGoaway(retryMs, progressed) {
    if (progressed) await this.sleep(retryMs * (1 + this.random() / 2));
    else await this.afterFailure(retryMs);
  }
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
