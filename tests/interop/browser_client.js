export function follow({ renew, show, done, fail }) { // cursor → URL of the job's stream; state at each change; at the end; an error
  let root = null, columns, epoch, seq, resyncs = 0, renewed = false; // root holds the state as its member "", so that every place is in a container
  const crc32 = (text) => ~new TextEncoder().encode(text).reduce((crc, byte) =>
    [..."01234567"].reduce((rest) => (rest >>> 1) ^ (0xedb88320 & -(rest & 1)), crc ^ byte), -1) >>> 0;
  const at = (path, tokens = path.split("/").map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~")), key = tokens.pop(),
    node = tokens.reduce((inner, token) => (Object.hasOwn(inner, token) ? inner[token] : null), root)) =>
    ({ node, key, old: Object.hasOwn(node, key) ? node[key] : null });
  const ops = { // what a breach throws leads to a resync, so that a state changed by half is never shown
    r: (...row) => row.forEach((x, i) => ops.a(columns[i], Array.isArray(at(columns[i]).old) ? [x] : x)),
    a: (path, more) => ops.s(path, at(path).old.concat(more)),
    t: (path, n, { old } = at(path), all = Array.from(old)) => ops.s(path, (all.length -= n, Array.isArray(old) ? all : all.join(""))),
    s: (path, x, { node, key } = at(path)) => Object.defineProperties(node, Object.getOwnPropertyDescriptors({ [key]: x })),
    i: (path, x, { node, key } = at(path)) => node.splice(key, 0, x),
    d: (path, { node, key } = at(path)) => (Array.isArray(node) ? node.splice(key, 1) : delete node[key]),
  };
  const holds = ([path, n, crc], { old } = at(path)) => Array.from(old).length === n && (crc === undefined || crc32(old) === crc);
  (async function open() {
    const later = () => void setTimeout(open, 1000 + 1000 * Math.random()), again = () => (source.close(), later());
    const url = await (async () => renew(root ? `${epoch}-${seq}` : ""))().catch(later), source = url && new EventSource(url);
    if (!source) return;
    for (const type of ["snapshot", "message", "done"]) source.addEventListener(type, ({ data, lastEventId }) => {
      try {
        const [e, s] = lastEventId.split("-").map(Number), content = JSON.parse(data);
        if (root && (e - epoch || s - seq) <= 0 && content.reason !== "rewound") return undefined; // a repeat
        if (type !== "snapshot" && (!root || e !== epoch || (content.on ?? s - 1) !== seq)) throw new Error(`a gap before ${lastEventId}`);
        if (type === "snapshot") [root, columns] = [{ "": content.state }, content.columns];
        else if (type === "done") Object.assign(root[""], (({ check, digest, expires_at, ...rest }) => rest)(content));
        else (typeof content === "string" ? [["r", content]] : content.ops ?? content).forEach(([op, ...rest]) => ops[op](...rest));
        if (!(content.check ?? []).every((check) => holds(check))) throw new Error(`a check of ${lastEventId} fails`);
        [epoch, seq] = [e, s];
      } catch (error) { root = null; return (resyncs += 1) > 3 ? (source.close(), fail(error)) : again(); }
      return type === "done" ? (source.close(), done(structuredClone(root[""]))) : show(structuredClone(root[""]));
    });
    for (const type of ["hello", "goaway"]) source.addEventListener(type, ({ data }) => (renewed = false, JSON.parse(data).reason === "auth_expired" && again()));
    source.addEventListener("problem", ({ data }, problem = JSON.parse(data)) => problem.retryable
      || (problem.code === "unauthorized" && (renewed = !renewed) ? again() : (source.close(), fail(problem)))); // a token has expired
    source.onerror = () => source.readyState === EventSource.CLOSED && again();
  })();
}
