// How long a client waits, and how often it tries (section 13.3).

const LONGEST_WAIT_MS = 30_000;
const LONGEST_ASKED_MS = 3_600_000; // TW-CLI-063

/** So many failures in a row, or so long a wait, that the user wanted no more. */
export class GivenUp extends Error {}

/** Failures in a row, and the wait that they lead to. */
export class Patience {
  #failures = 0;

  constructor({ baseMs = 1000, maxFailures = Infinity, random = Math.random, sleep = pause }) {
    Object.assign(this, { baseMs, maxFailures, random, sleep });
  }

  progress() {
    this.#failures = 0;
  }

  async afterFailure(leastMs = 0) {
    checked(leastMs);
    this.#failures += 1;
    if (this.#failures > this.maxFailures) throw new GivenUp(`${this.maxFailures} failures in a row`);
    const grown = Math.min(LONGEST_WAIT_MS, this.baseMs * 2 ** (this.#failures - 1)) * (0.5 + this.random());
    await this.sleep(Math.max(leastMs * (1 + this.random() / 2), grown));
  }

  /** TW-CLI-040: a wait that the server asked for is not a failure. */
  async asAsked(ms) {
    if (ms) await this.sleep(checked(ms) * (1 + this.random() / 2));
    else await this.afterFailure();
  }

  async afterGoaway(retryMs, progressed) {
    if (progressed) await this.sleep(checked(retryMs) * (1 + this.random() / 2));
    else await this.afterFailure(retryMs);
  }
}

function checked(ms) {
  if (ms > LONGEST_ASKED_MS) throw new GivenUp(`the server asked to wait ${ms} ms`);
  return ms;
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
