// The page: which view is shown, the lists of endpoints and jobs, tokens, and the submission of jobs.

import { Client } from "./client/index.js";
import { Announcer } from "./announcer.js";
import { h } from "./dom.js";
import { JobFeed } from "./job_feed.js";
import { JobView, statusChip } from "./job_view.js";
import { OperatorView } from "./operator_view.js";
import { SchemaForm } from "./schema_form.js";
import { Session, themeButton } from "./session.js";
import { Vocabulary } from "./vocabulary.js";

const base = new URL(".", location.href);
const session = new Session(base);
const LIST_INTERVAL = 10_000; // ms between two reads of the list of jobs
const MAX_LISTED = 30;
const MAX_DELAY = 5_000; // ms between two attempts to reach a server that is away
const MAX_TIME = 60_000; // ms for a response to `get`; a network that hangs would delay a view forever
const SLOW = 3_000; // ms after which the page shows `WAITS`
const WAITS = "The server has not answered yet. The page keeps trying.";
const MAX_LABEL = 60;
const DEFAULTS = "Defaults";
const FILE = /^[A-Za-z0-9+/=]{200}/; // base64; to match all of a large file would overflow the stack
const JOB_ID = /^[\w.~-]+$/;

const $ = (id) => document.getElementById(id);
const main = $("main");
const announcer = new Announcer($("announcements"));

let discovery = null;
let client = null; // one for all requests, until the token changes
let view = null; // what `main` shows: { close(), redraw?() }
const descriptions = new Map(); // promises by the name of the endpoint
const inputs = new Map(); // of the jobs that this page submitted
const statuses = new Map(); // of the job in the view, and of jobs that ended in it

// ---- requests --------------------------------------------------------------------------------------------------------

/** GET a resource that the client does not know. The token travels in the header Authorization only. */
async function get(path, { role = "caller", method = "GET" } = {}) {
  const token = session.token(role);
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  const response = await fetch(new URL(path, base), { method, headers, signal: AbortSignal.timeout(MAX_TIME) });
  if (response.ok) return response;
  const problem = await response.json().catch(() => null), { status } = response;
  const message = problem?.detail ?? problem?.title ?? `The server responded with the status ${status}.`;
  throw Object.assign(new Error(message), { status, code: problem?.code });
}

function newClient() {
  const token = session.token("caller") ?? undefined;
  return new Client(base, { token, retry: { patienceMs: Infinity, maxDelayMs: MAX_DELAY }, maxStateBytes: discovery?.limits.max_state_bytes });
}

const TOKEN_TEXTS = {
  caller: ["Token needed", "This server answers only callers with a token. It is kept in this tab, until you close the tab."],
  operator: ["Operator's token needed", "The numbers of all callers are only for operators of this server."],
};

/** Ask for a token. Resolves with false if the dialog was cancelled. */
function askForToken(role, error) {
  const dialog = $("token-dialog"), field = $("token");
  [$("token-title").textContent, $("token-text").textContent] = TOKEN_TEXTS[role];
  $("token-error").textContent = error;
  field.value = dialog.returnValue = "";
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "accepted");
    $("token-form").onsubmit = (event) => {
      event.preventDefault();
      const token = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(token)) return void ($("token-error").textContent = "A token has only visible ASCII characters.");
      session.setToken(role, token);
      dialog.close("accepted");
    };
    $("token-cancel").onclick = () => dialog.close();
    dialog.showModal();
  });
}

/** Whether the server accepts bearer tokens. An application that signs its callers in itself sends another challenge. */
async function acceptsTokens() {
  const response = await fetch(new URL("v1", base)).catch(() => null);
  return /^bearer\b/i.test(response?.headers.get("www-authenticate") ?? "Bearer");
}

/** Send a request, again with each token that the visitor enters while the server responds with 401. */
async function authorized(role, send, error = "") {
  for (; ; error = "The server does not accept this token.") {
    try {
      return await send();
    } catch (problem) {
      if (problem.status !== 401) throw problem;
      session.setToken(role, null);
      problem.needsToken = role === "operator" || (await acceptsTokens());
      if (!problem.needsToken || !(await askForToken(role, error))) throw problem;
      if (role === "caller") client = newClient();
    }
  }
}

/** Call a function if a request takes long: the client repeats the requests that a server does not answer. */
const tellIfSlow = (request, tell, timer = setTimeout(tell, SLOW)) => request.finally(() => clearTimeout(timer));

// ---- start -----------------------------------------------------------------------------------------------------------

async function connect() {
  for (;;) {
    try {
      client = newClient();
      discovery = await authorized("caller", () => client.discover());
      break;
    } catch (problem) {
      if (problem.status === 401) {
        const [text, action] = problem.needsToken ? ["Without a token, this server answers no requests.", "Enter a token"] : [problem.problem?.detail ?? problem.message, "Retry"];
        main.replaceChildren(banner(text, action, () => location.reload()));
        return false;
      }
      main.replaceChildren(banner(`The server cannot be reached: ${problem.message} The page tries again.`));
      await new Promise((resolve) => setTimeout(resolve, 2_000));
    }
  }
  client = newClient();
  await client.discover(); // so that later failures count as outages
  $("sign-out").hidden = session.token("caller") === null;
  const kept = { process: "jobs in memory", host: "jobs on disk", replicated: "jobs in a database" };
  $("server").hidden = false;
  $("server").textContent = `${discovery.server.replace("_", " ").replace("/", " ")} · ${kept[discovery.durability] ?? discovery.durability}`;
  $("endpoints").replaceChildren(...discovery.endpoints.map(({ name, summary }) => {
    const link = h("a", { href: `#/endpoints/${encodeURIComponent(name)}`, title: summary ?? "" }, h("span", { class: "name", text: name }));
    return h("li", {}, link);
  }));
  return true;
}

function banner(text, action, act) {
  const button = action && h("button", { type: "button", text: action, on: { click: act } });
  return h("div", { class: "banner", role: "alert" }, h("p", { text }), button);
}

// ---- views -----------------------------------------------------------------------------------------------------------

async function route() {
  if (discovery === null) return;
  const [, kind, name] = location.hash.match(/^#\/(\w*)(?:\/(.*))?$/) ?? [];
  if (kind === undefined && location.hash !== "") return; // a link within the page
  const shown = decoded(name ?? "");
  const first = discovery.endpoints[0]?.name;
  const here = kind ? location.hash : `#/endpoints/${encodeURIComponent(first ?? "")}`;
  for (const link of document.querySelectorAll(".side a, #operator-link")) {
    if (link.getAttribute("href") === here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  scrollTo(0, 0);
  if (shown === null || (kind === "jobs" && !JOB_ID.test(shown))) return show({ element: banner("This is not a link of this page.") });
  if (kind === "jobs") return showJob(shown);
  if (kind === "operator") return show(new OperatorView({ metrics }), "Operator");
  if (first === undefined) return show({ element: banner("This server has no endpoints.") });
  return showEndpoint(kind === "endpoints" ? shown : first);
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return null; }
}

function show(next, title = "Page") {
  view?.close?.();
  view = next;
  main.replaceChildren(next.element);
  document.title = `${title} – Tidewire`;
}

/** Read the description of an endpoint once, and its vocabulary if it has one. */
function describe(name) {
  if (!descriptions.has(name)) {
    const found = client.describe(name);
    found.catch(() => descriptions.delete(name));
    descriptions.set(name, found);
  }
  return descriptions.get(name);
}

async function vocabularyOf(endpoint) {
  const link = endpoint?.capabilities?.logprobs && endpoint.links?.vocabulary;
  if (!link) return null;
  const url = new URL(link, base);
  if (url.origin !== base.origin) return null; // the token is for this server only
  endpoint.vocabulary ??= get(url).then((response) => response.json()).then((resource) => new Vocabulary(resource));
  return endpoint.vocabulary.catch(() => (endpoint.vocabulary = null));
}

async function showEndpoint(name) {
  show({ element: h("p", { class: "quiet", role: "status", text: `Loading ${name} …` }) }, name);
  const mine = view;
  const find = () => tellIfSlow(describe(name), () => (mine.element.textContent = WAITS));
  const endpoint = await authorized("caller", find).catch((error) => error);
  if (view !== mine) return;
  if (endpoint instanceof Error) return show({ element: banner(endpoint.message) }, name);
  const empty = h("section", { class: "job empty", "aria-label": "Result" },
    h("p", { class: "big", text: "The result streams here." }),
    h("p", { class: "quiet", text: "Choose an example or fill in the form, and run it. A lost connection loses nothing: the stream continues where it was, also after a reload and in another tab." }));
  show({ element: h("div", { class: "work" }, callPanel(endpoint, undefined), empty) }, name);
}

async function showJob(id) {
  const feed = new JobFeed(client, id);
  show({ element: h("p", { class: "quiet", role: "status", text: "Opening the job …" }), close: () => feed.close() }, "Job");
  const mine = view;
  const open = async () => {
    await feed.opened(listed.find((job) => job.id === id) ?? session.jobs().find((job) => job.id === id));
    const endpoint = feed.endpoint ? await describe(feed.endpoint).catch(() => null) : null;
    return [endpoint, await vocabularyOf(endpoint)];
  };
  const [endpoint, vocabulary] = await tellIfSlow(open(), () => (mine.element.textContent = WAITS));
  if (view !== mine) return;
  feed.onStatus = (status) => {
    statuses.set(id, status);
    document.title = `${status} · ${feed.endpoint ?? "job"} – Tidewire`;
    if (feed.gone) {
      session.forget(id);
      statuses.delete(id);
    }
    listJobs();
  };
  const job = new JobView(feed, { endpoint, vocabulary, announce: (text) => announcer.announce(text), cancel: () => feed.job.cancel(), link: location.href });
  const panel = endpoint && callPanel(endpoint, inputs.get(id));
  const wide = matchMedia("(min-width: 70rem)").matches;
  if (panel && !wide) panel.open = false;
  view = null; // the next view takes over the feed
  const close = () => {
    job.close();
    if (!feed.ended) statuses.delete(id); // nobody updates it from now on
  };
  show({ element: h("div", { class: "work" }, panel ?? h("h1", { class: "unseen", text: "Job" }), job.element), close, redraw: () => job.redraw() }, "Job");
  feed.follow(discovery.durability === "process"
    ? "This job is lost: the server was restarted, and it keeps its jobs in memory. Start it with --log sqlite:///jobs.db, and jobs survive a restart."
    : "The server does not know this job (any more).");
}

/** The description, the examples and the form of an endpoint. */
function callPanel(endpoint, input) {
  const form = new SchemaForm(endpoint, discovery.limits.max_body_bytes);
  const run = h("button", { type: "submit", class: "primary", text: "Run" });
  const examples = (Array.isArray(endpoint.examples) ? endpoint.examples : []).map((example) => {
    const click = () => (form.fill(example), run.focus());
    return h("li", {}, h("button", { type: "button", class: "example", on: { click } }, labelOf(example)));
  });
  if (input !== undefined) form.fill(input);
  const submit = async (event) => {
    event.preventDefault();
    run.disabled = true;
    run.textContent = "Submitting …";
    try {
      const given = await form.read();
      const send = () => tellIfSlow(client.submit(endpoint.name, given), () => form.showProblem({ message: WAITS }));
      const job = await authorized("caller", send, "The server no longer accepts the token.");
      inputs.set(job.id, given);
      if (!discovery.capabilities.includes("list")) session.remember({ id: job.id, endpoint: endpoint.name, label: labelOfJob(job.id), at: Date.now() });
      if (run.isConnected) location.hash = `#/jobs/${job.id}`;
      else listJobs(); // a visitor who has gone to another view stays there
    } catch (error) {
      form.showProblem({ message: error.problem?.detail ?? error.message, pointer: error.pointer, field: error.field });
    } finally {
      run.disabled = false;
      run.textContent = "Run";
    }
  };
  const model = endpoint.capabilities?.model;
  const facts = model && `${model.name} · ${model.architecture} · ${model.dtype} on ${model.device} · context of ${model.context} tokens`;
  return h("details", { class: "call", open: true },
    h("summary", {}, h("h1", { text: endpoint.name })),
    endpoint.summary && h("p", { text: endpoint.summary }),
    endpoint.description && h("p", { class: "quiet", text: endpoint.description }),
    facts && h("p", { class: "quiet", text: facts }),
    ...(examples.length > 0 ? [h("h2", { text: "Examples" }), h("ul", { class: "examples" }, ...examples)] : []),
    h("form", { on: { submit }, novalidate: true }, h("h2", { text: "Input" }), form.element, h("div", { class: "buttons" }, run, form.toggle)));
}

/** What distinguishes a job from others of its endpoint, as far as this page knows its input. */
function labelOfJob(id) {
  const label = inputs.has(id) ? labelOf(inputs.get(id)) : DEFAULTS;
  return label === DEFAULTS ? "" : label;
}

/** A short text for an input. */
function labelOf(input) {
  const isObject = typeof input === "object" && input !== null && !Array.isArray(input);
  if (isObject && Object.keys(input).length === 0) return DEFAULTS;
  const parts = isObject ? Object.entries(input).map(([name, value]) => (typeof value !== "string" ? `${name}: ${JSON.stringify(value)}` : FILE.test(value) ? name : value)) : [JSON.stringify(input)];
  const text = parts.join(" · ").replaceAll(/\s+/g, " ");
  return text.length > MAX_LABEL ? `${text.slice(0, MAX_LABEL - 1)}…` : text;
}

async function metrics() {
  try {
    return await authorized("operator", async () => (await get("metrics", { role: "operator" })).text());
  } catch ({ status, message }) {
    throw Object.assign(new Error(status ? message : "The server cannot be reached. The page tries again."), { final: Boolean(status) });
  }
}

// ---- jobs ------------------------------------------------------------------------------------------------------------

let listed = []; // jobs, as the server lists them
let listing = null;

/** Draw the list of jobs: those of the caller, or of this browser if the server does not list them. */
async function listJobs() {
  if (discovery.capabilities.includes("list")) {
    if (listing) return;
    listing = client.jobs({ limit: MAX_LISTED });
    listed = await listing.catch(() => listed); // the list stays as it is if the server has become unable to answer
    listing = null;
  }
  const own = listed.map((job) => ({ ...job, at: Date.parse(job.created_at), label: labelOfJob(job.id) }));
  const jobs = discovery.capabilities.includes("list") ? own : session.jobs();
  $("no-jobs").hidden = jobs.length > 0;
  const list = $("jobs"), drawn = list.cloneNode(), focused = list.contains(document.activeElement) ? document.activeElement.hash : null;
  drawn.append(...jobs.map(jobEntry));
  if (drawn.isEqualNode(list)) return; // a new list would take the focus from its reader
  list.replaceWith(drawn);
  if (focused !== null) drawn.querySelector(`a[href="${focused}"]`)?.focus();
}

function jobEntry({ id, endpoint, status, at, label }) {
  const known = statuses.get(id) ?? status;
  const href = `#/jobs/${encodeURIComponent(id)}`;
  const time = new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const current = href === location.hash ? "page" : null;
  return h("li", {}, h("a", { href, "aria-current": current }, h("span", { class: "name", text: label || endpoint }), h("span", { class: "sub" }, known && statusChip(known), ` ${label ? `${endpoint} · ` : ""}${time}`)));
}

/** Forget the jobs of this browser that the server has deleted or lost. */
async function forgetLostJobs() {
  if (discovery.capabilities.includes("list")) return;
  for (const { id } of session.jobs()) {
    const path = `v1/jobs/${encodeURIComponent(id)}`;
    // A proxy responds with 404, too. Only the body of a GET shows whether the server sent it.
    const found = await get(path, { method: "HEAD" }).catch(() => get(path)).catch((error) => error);
    if (["job_not_found", "job_expired"].includes(found.code)) session.forget(id);
  }
  listJobs();
}

// ---- wiring ----------------------------------------------------------------------------------------------------------

themeButton($("theme"), () => view?.redraw?.());
$("sign-out").addEventListener("click", () => {
  for (const role of ["caller", "operator"]) session.setToken(role, null);
  location.hash = "#/";
  location.reload();
});
if (await connect()) {
  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => document.hidden || listJobs());
  setInterval(() => document.hidden || listJobs(), LIST_INTERVAL);
  listJobs();
  await route();
  await forgetLostJobs();
}
