"""Pages, stream tokens and problems in-band that are answered wrongly."""

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant

TOKEN = "browser.a_stream_token_opens_its_stream"


@mutant("TW-BRW-008", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_forgets_the_cursor(hooks):
    """A preflight does not allow `Last-Event-ID`."""

    def forget(talk, status, headers):
        name = "access-control-allow-headers"
        headers[name] = ", ".join(
            each for each in headers.get(name, "").split(", ") if each.lower() != "last-event-id"
        )

    hooks.heads.append(forget)


@mutant("TW-BRW-010", "browser.a_preflight_allows_what_a_page_needs")
def a_preflight_for_five_seconds(hooks):
    """A preflight is kept for five seconds."""
    hooks.heads.append(lambda talk, status, headers: headers.update({"access-control-max-age": "5"}))


@mutant("TW-BRW-020", TOKEN)
def tokens_stand_in_referrers(hooks):
    """The answer to a URL with a token has no `Referrer-Policy`."""
    hooks.heads.append(lambda talk, status, headers: headers.pop("referrer-policy", None) and None)


@mutant("TW-BRW-017", TOKEN)
def tokens_without_problems_in_band(hooks):
    """With a stream token problems come by their status."""

    def plain(talk):
        talk.scope["query_string"] = talk.scope["query_string"].replace(b"errors=inband&", b"")

    hooks.requests.append(plain)
    hooks.instead.append(
        lambda talk: (
            problem(400, "bad_cursor") if b"token=" in talk.scope["query_string"] and b"after=x" in talk.scope["query_string"]
            else None
        )
    )  # fmt: skip


@mutant(
    "TW-ERR-019",
    "browser.problems_come_in_band_only_where_asked_for",
    "resume.a_cursor_that_is_no_id_is_refused",
)
def problems_are_always_in_band(hooks):
    """Every problem of a stream comes in-band."""

    def ask(talk):
        if talk.method == "GET" and talk.path.endswith("/events"):
            talk.scope["query_string"] = b"&".join(
                filter(None, [talk.scope["query_string"], b"errors=inband"])
            )

    hooks.requests.append(ask)


@mutant("TW-ERR-017", "browser.the_cursor_0_1_is_answered_with_204")
def the_cursor_0_1_needs_credentials(hooks):
    """The cursor `0-1` is answered with 204 to those alone who may read the job."""
    hooks.instead.append(
        lambda talk: (
            problem(401, "unauthorized")
            if talk.cursor == "0-1" and not talk.header("authorization")
            else None
        )
    )


@mutant("TW-BRW-011", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def no_vary(hooks):
    """An origin is named without `Vary: Origin`."""
    hooks.heads.append(lambda talk, status, headers: headers.pop("vary", None) and None)


@mutant("TW-BRW-009", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def location_is_not_exposed(hooks):
    """A page may not read `Location`."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.update({"access-control-expose-headers": "Retry-After, Idempotency-Replayed"}) or None
        )
    )


@mutant("TW-SEC-011", "ownership.a_credential_in_the_url_opens_nothing")
def a_token_in_the_url_is_taken(hooks):
    """A caller's own token is taken from the URL."""

    def take(talk):
        name, _, secret = talk.scope["query_string"].partition(b"=")
        if name == b"access_token" and not talk.header("authorization"):
            talk.set_header("authorization", f"Bearer {secret.decode()}")

    hooks.requests.append(take)
