"""Authentication of requests: determine the principal of a caller from its bearer token, a function, or its address."""

from typing import Final

from starlette.requests import Request

from tidewire_server.errors import refuse
from tidewire_server.http.request_reading import header
from tidewire_server.principals import (
    ANONYMOUS,
    PrincipalFunction,
    TokenPrincipals,
    anonymous_at,
    is_anonymous,
    principal_from,
)
from tidewire_server.settings import Settings

_PRINCIPAL: Final = "tidewire.principal"
"""Key in the ASGI scope under which the caller's principal is stored. Starlette's `request.state` is slower."""


def principal_of(request: Request) -> str:
    """Return the principal of the caller. The request must have been authenticated before."""
    principal: str = request.scope[_PRINCIPAL]
    return principal


class Authentication:
    """The tokens that the server accepts, or the function that names callers, and the rules for anonymous callers."""

    def __init__(self, settings: Settings, principal: PrincipalFunction | None = None) -> None:
        """Read the tokens in the settings.

        Args:
            settings: The server's settings.
            principal: Function that returns the name of the caller. The server then has no tokens.

        Raises:
            ValueError: A token is not valid.
        """
        self._tokens = TokenPrincipals(settings.tokens)
        self._operator_tokens = TokenPrincipals(settings.operator_tokens)
        self._function = principal
        self._function_timeout = settings.principal_timeout
        self._single_user = settings.is_single_user(on_loopback=False)

    @property
    def is_required(self) -> bool:
        """Whether callers must identify themselves, by a token or in a way that the function `principal` accepts."""
        return bool(self._tokens) or self._function is not None

    @property
    def single_user(self) -> bool:
        """Whether all callers are one user. `serve` sets this property, because only `serve` knows the server's address."""
        return self._single_user and not self.is_required

    @single_user.setter
    def single_user(self, value: bool) -> None:
        self._single_user = value

    @property
    def lists_jobs(self) -> bool:
        """Whether callers may list their jobs. An anonymous caller cannot prove which jobs are its own [TW-JOB-076]."""
        return self.single_user or self.is_required

    async def authenticate(self, request: Request) -> None:
        """Determine the principal of the caller.

        Raises:
            ProblemError: The request has none of the server's tokens, or the function `principal` does not know the caller.
            PrincipalFunctionError: The function has failed.
        """
        if self._function is not None:
            name = await principal_from(self._function, request.scope, self._function_timeout)
            request.scope[_PRINCIPAL] = name
        elif self._tokens:
            request.scope[_PRINCIPAL] = self._tokens.principal(header(request, b"authorization"))
        else:
            request.scope[_PRINCIPAL] = self._anonymous(request)

    def authenticate_as_reader(self, request: Request, owner: str | None) -> None:
        """Determine the principal of a caller with a valid stream token.

        With the token, a client has the same access to the stream as the job's principal. The stream counts towards the
        limit of this principal. If the job is anonymous, the stream counts towards the limit of the reader's address.

        Args:
            request: The request.
            owner: Principal of the job, or None if the job is unknown.
        """
        anonymous = owner is None or is_anonymous(owner)
        request.scope[_PRINCIPAL] = self._anonymous(request) if anonymous else owner

    def check_operator(self, request: Request) -> None:
        """Check that the caller may read the metrics. Metrics are totals over all principals, so the token of a principal is
        not sufficient.

        Raises:
            ProblemError: The caller is not an operator.
        """
        if self.is_required and not self._operator_tokens:
            raise refuse(
                "forbidden",
                "the metrics need an operator token, and this server has none; set operator_tokens or "
                "--operator-token-file",
            )
        self._operator_tokens.principal(header(request, b"authorization"))

    def _anonymous(self, request: Request) -> str:
        """Return the principal of an anonymous caller."""
        if self.single_user:
            return ANONYMOUS
        client = request.scope.get("client")
        return anonymous_at(client[0] if client else None)
