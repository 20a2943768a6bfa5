// What the page keeps in the browser: tokens for this tab, and for all tabs the theme and the jobs that this browser started.
// One browser may use several servers below one origin, so the names contain the path of the server.

const MAX_JOBS = 50;
const tab = storage("sessionStorage");
const browser = storage("localStorage");

/** A storage of the browser, or memory if the browser forbids the access, as it may in private windows and in frames. */
function storage(name) {
  try {
    return globalThis[name];
  } catch {
    const kept = new Map();
    return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), removeItem: (key) => kept.delete(key) };
  }
}

/** Keep a text for all tabs, unless the storage is full, which all applications of an origin share. */
function keep(name, text) {
  try { browser.setItem(name, text); } catch {} // what failed is only the memory of a job or of the theme
}

export class Session {
  #path;

  /** @param {URL} base URL of the server */
  constructor(base) {
    this.#path = base.pathname;
  }

  /** Token of the caller, or of an operator; null if there is none. It is only ever sent in the header Authorization. */
  token(role) {
    return tab.getItem(this.#name(role));
  }

  setToken(role, token) {
    if (token === null) tab.removeItem(this.#name(role));
    else tab.setItem(this.#name(role), token);
  }

  /** Jobs that this browser started, newest first. @returns {{id: string, endpoint: string, label: string, at: number}[]} */
  jobs() {
    try {
      const found = JSON.parse(browser.getItem(this.#name("jobs")) ?? "[]");
      return Array.isArray(found) ? found.filter((job) => typeof job?.id === "string" && typeof job.endpoint === "string") : [];
    } catch {
      return [];
    }
  }

  remember(job) {
    const others = this.jobs().filter(({ id }) => id !== job.id);
    keep(this.#name("jobs"), JSON.stringify([job, ...others].slice(0, MAX_JOBS)));
  }

  forget(id) {
    keep(this.#name("jobs"), JSON.stringify(this.jobs().filter((job) => job.id !== id)));
  }

  #name(what) {
    return `tidewire ${this.#path} ${what}`;
  }
}

/** Let a button switch the theme, which is that of the system at first. */
export function themeButton(button, changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => (button.textContent = isDark() ? "☀" : "☾");
  const saved = browser.getItem("tidewire theme");
  if (saved === "dark" || saved === "light") document.documentElement.dataset.theme = saved;
  show();
  system.addEventListener("change", () => (show(), changed()));
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    keep("tidewire theme", theme);
    show();
    changed();
  });
}
