// What a client does with an answer (section 13.6), by what was asked for, the status and the header fields.

/**
 * `asked` is stream, submit or other. The word for it:
 *
 *   use        it is what was asked for
 *   read       nothing follows the cursor: the job is read
 *   wait       Retry-After, else the backoff, then the same again
 *   redirect   followed where it may be
 *   refresh    new credentials, once
 *   resync     as after a malformed event
 *   cut        as a cut, so many in a row
 *   fatal
 */
export function verdict(asked, status, headers, cursor = false) {
  if (status === 429 || status === 503 || (status === 409 && asked === "submit")) return "wait";
  if (status === 401 || status === 403) return "refresh";
  if (status >= 500) return "cut";
  if (asked === "stream") {
    if (status === 200) return isEventStream(headers) ? "use" : "cut";
    if (status === 204) return "read";
    if (status === 400 && cursor) return "resync";
  } else if (status >= 200 && status < 300) return "use";
  return [301, 302, 303, 307, 308].includes(status) && asked !== "submit" ? "redirect" : "fatal";
}

function isEventStream(headers) {
  const [type] = (headers["content-type"] ?? "").split(";");
  const coding = headers["content-encoding"] ?? "identity";
  return type.trim().toLowerCase() === "text/event-stream" && coding.trim().toLowerCase() === "identity";
}

/** Whole seconds, as milliseconds; undefined where there are none (TW-CLI-046). */
export function retryAfterMs(headers) {
  const value = headers["retry-after"];
  return /^[0-9]{1,12}$/.test(value ?? "") ? Number(value) * 1000 : undefined;
}
