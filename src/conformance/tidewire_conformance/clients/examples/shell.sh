#!/bin/sh
# A minimal client that uses curl, sed and awk. It reads one response to its end and never reconnects. It applies only
# diffs that append text to the value, and it verifies nothing. Therefore it fails all requirements of the profile
# `durable` and many requirements of `core`. The client copies bytes that are not UTF-8 into its reports. Such a report
# is not JSON, so the scenario framing.bytes-that-are-not-utf-8 ends with an error instead of a failure.
# Commands and reports are lines of JSON. The file spec/scenarios/README.md describes them.
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
      # Take the text from the first complete value, then append the diffs to it. The escapes of JSON strings are
      # kept, and data that is not a JSON string is ignored.
      $0 == "" && match(data, /"value":"([^"\\]|\\.)*"/) { text = substr(data, RSTART + 9, RLENGTH - 10); saw() }
      $0 == "" && match(data, /"\/items\/0\/value","([^"\\]|\\.)*"/) { text = substr(data, RSTART + 18, RLENGTH - 19); saw() }
      $0 == "" && kind == "" && data ~ /^"([^"\\]|\\.)*"$/ { text = text substr(data, 2, length(data) - 2); saw() }
      $0 == "" { kind = data = "" }
      END { printf "{\"id\": \"%s\", \"end\": \"%s\", \"value\": \"%s\"}\n", id, ended ? ended : "connection_error", text }'
done
