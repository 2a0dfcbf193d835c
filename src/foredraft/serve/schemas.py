"""Bodies of requests. Every field has an effect or is listed as plain bookkeeping; others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_STOPS = 4
MAX_LIKELIEST = 20
MAX_BIASES = 1024
UNSUPPORTED = frozenset(
    {
        "annotations",
        "audio",
        "best_of",
        "function_call",
        "functions",
        "modalities",
        "moderation",
        "name",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_content",
        "reasoning_effort",
        "refusal",
        "service_tier",
        "suffix",
        "tool_call_id",
        "tool_calls",
        "tool_choice",
        "tools",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of OpenAI that are refused; with null, which its client writes, they are absent."""

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
TokenId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
"""One spelling for each, so that no token has two biases."""
Bias = Annotated[float, Field(ge=-100, le=100)]
StopText = Annotated[str, Field(min_length=1)]
PromptIds = Annotated[list[Whole], Field(min_length=1)]


class Strict(BaseModel):
    """No unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None or k not in UNSUPPORTED}


class StreamOptions(Strict):
    """How an answer is streamed."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Choice(Strict):
    """Foredraft's own options."""

    method: str | None = Field(None, description="One of the methods the server was started with.")
    trace: bool | None = Field(None, description="Have a stream tell each round: tree and tokens.")


class Shared(Strict):
    """What requests for chats and for texts have in common."""

    model: str
    max_tokens: Count | None = None
    n: Count | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Whole | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASES)] | None = None
    seed: Int64 | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    min_tokens: Whole | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    foredraft: Choice | None = None
    user: str | None = Field(None, description="Plain bookkeeping: without effect.")

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_trace(self) -> bool:
        """Whether a stream tells its rounds."""
        return bool(self.foredraft and self.foredraft.trace)

    @model_validator(mode="after")
    def _check_stream(self) -> Shared:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams; set stream to true, or leave it out")
        if self.wants_trace and not self.stream:
            raise ValueError("foredraft.trace is for streams; set stream to true, or leave it out")
        return self


class TextPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The content, its parts joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

    def as_prompt(self) -> dict[str, str]:
        """As chat templates take it: they know developers as the system."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.text}


class JsonSchema(Strict):
    """A schema that the answer must satisfy."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = Field(None, description="Plain bookkeeping: without effect.")
    strict: bool | None = Field(None, description="Schemas are always held to, as if true.")


class ResponseFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type 'json_schema', and with no other")
        return self


class ChatRequest(Shared):
    """The body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST)
    response_format: ResponseFormat | None = None
    metadata: dict[str, str] | None = Field(None, description="Plain bookkeeping: without effect.")
    safety_identifier: str | None = Field(None, description="Plain bookkeeping: without effect.")
    store: Literal[False] | None = Field(None, description="Nothing is ever stored.")

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs; set logprobs to true")
        return self

    @model_validator(mode="after")
    def _check_max_tokens(self) -> ChatRequest:
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self


class TextRequest(Shared):
    """The body of `/v1/completions`."""

    prompt: (
        str
        | PromptIds
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[PromptIds], Field(min_length=1)]
    )
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST)

    @property
    def prompts(self) -> list[str | list[int]]:
        """One for each group of answers."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        texts = [part for part in self.prompt if not isinstance(part, int)]
        return [*texts] if texts else [[part for part in self.prompt if isinstance(part, int)]]


PLACES: dict[str, type[Strict]] = {
    "messages": Message,
    "content": TextPart,
    "response_format": ResponseFormat,
    "json_schema": JsonSchema,
    "stream_options": StreamOptions,
    "foredraft": Choice,
}
"""Forms by the field that holds them."""


BODIES: dict[str, type[Strict]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": TextRequest,
}
"""Forms of bodies by the route that takes them."""


def fields_at(route: str, place: Sequence[str | int]) -> list[str]:
    """Known fields beside the one at this place of a body."""
    holders = [part for part in place[:-1] if isinstance(part, str)]
    form = PLACES[holders[-1]] if holders else BODIES[route]
    return [field.alias or name for name, field in form.model_fields.items()]
