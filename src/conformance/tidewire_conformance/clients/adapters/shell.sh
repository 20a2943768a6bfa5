#!/bin/sh
# A toy: a client of curl, sed and awk, as somebody writes one in ten minutes. It reads one answer to its end and goes
# on nowhere: it never reconnects, knows no diff but a text at the end of the value, and verifies nothing. The suite
# says which sentences that breaks: those of the profile durable, and many of core. Bytes that are no UTF-8 it passes on
# as they came: what it reports of them is no JSON, and one scenario (framing.bytes-that-are-not-utf-8) is an error.
# It reads commands and writes reports, lines of JSON, as spec/scenarios/README.md tells them.
printf '%s\n' '{"client": "shell toy (curl, awk)", "can": []}'
member() { printf '%s' "$line" | sed -n 's/.*"'"$1"'": *"\([^"]*\)".*/\1/p'; }
while IFS= read -r line; do
  [ "$(member op)" = run ] || exit 0
  curl --silent --no-buffer --max-time 8 -H 'Accept: text/event-stream' -H 'Accept-Encoding: identity' \
    "$(member base_url)/v1/jobs/$(member job)/events" |
    awk -v id="$(member id)" '
      function saw() { printf "{\"id\": \"%s\", \"saw\": \"value\", \"value\": \"%s\"}\n", id, text; fflush() }
      { sub(/\r$/, "") }
      /^event:/ { kind = $0; sub(/^event: ?/, "", kind) }
      /^data:/ { data = $0; sub(/^data: ?/, "", data) }
      $0 == "" && kind == "done" && match(data, /"status":"[a-z_]+"/) { ended = substr(data, RSTART + 10, RLENGTH - 11); exit }
      # The first value of a text, wherever it is set or shown; then what is appended to it. It stays in its escapes,
      # and what is no string of JSON is passed over.
      $0 == "" && match(data, /"value":"([^"\\]|\\.)*"/) { text = substr(data, RSTART + 9, RLENGTH - 10); saw() }
      $0 == "" && match(data, /"\/items\/0\/value","([^"\\]|\\.)*"/) { text = substr(data, RSTART + 18, RLENGTH - 19); saw() }
      $0 == "" && kind == "" && data ~ /^"([^"\\]|\\.)*"$/ { text = text substr(data, 2, length(data) - 2); saw() }
      $0 == "" { kind = data = "" }
      END { printf "{\"id\": \"%s\", \"end\": \"%s\", \"value\": \"%s\"}\n", id, ended ? ended : "connection_error", text }'
done
