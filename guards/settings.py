"""Settings of the guards: the sections `[guards.<name>]`, `[brake]` and `[logits]` of checkengine.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

GuardAction = Literal["off", "observe", "warn", "stop", "retry"]


class Section(BaseModel):
    """A table of checkengine.toml: unknown keys are refused, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GuardSettings(Section):
    """What every guard has. Budgets are CPU time of the guard in one step."""

    action: GuardAction = "observe"
    budget_microseconds: float = Field(500.0, gt=0)
    """For the step as such…"""
    budget_microseconds_per_row: float = Field(20.0, ge=0)
    """…and for each row of its batch."""
    quarantine: bool = False
    """Keep the sequence's KV blocks from being handed on when this guard stops or retries it."""


class NonFiniteSettings(GuardSettings):
    """NaN or an infinity in raw logits."""

    action: GuardAction = "stop"
    quarantine: bool = True


class UniformSettings(GuardSettings):
    """All logits of a row alike: what engines make of a row of NaN."""

    action: GuardAction = "stop"
    quarantine: bool = True
    entropy_tolerance: float = Field(1e-4, ge=0)
    """Nats below ln(vocabulary) at which a row still counts as uniform (level `full` only)."""


class MagnitudeSettings(GuardSettings):
    """Logits or hidden states of a size that this replica does not reach, as after a flipped exponent bit."""

    absurd: float = Field(1e4, gt=0)
    """A largest logit that no trained model gives; found from the first step on."""
    false_alarm: float = Field(2e-7, gt=0, lt=0.01)
    """Chance per row and reading that a healthy one passes its limit, if the tails are no heavier than exponential."""
    minimum_rows: int = Field(1024, ge=256, le=8192)
    """Rows to learn the usual sizes from; before that only `absurd` counts."""


class ImpossibleTokenSettings(GuardSettings):
    """A token id that the tokenizer cannot decode."""

    action: GuardAction = "stop"


class IgnoredStopSettings(GuardSettings):
    """Tokens after an end token that the request honours."""


class RepetitionSettings(GuardSettings):
    """Text that repeats itself. It warns early; it may stop once it has gone on for long, or for certain."""

    warn_repeated: int = Field(24, ge=16)
    """Repeated tokens before an exact cycle is told."""
    short_span: int = Field(96, ge=16)
    """Tokens that a cycle without words must cover: dividers, table rules, zero-filled numbers…"""
    minimum_copies: int = Field(3, ge=2)
    """Whole copies after which a cycle may stop where its logits have collapsed…"""
    minimum_span: int = Field(48, ge=16)
    """…and tokens that these cover together."""
    collapsed_entropy: float = Field(0.01, ge=0)
    """Nats up to which logits count as collapsed (level `full` only)."""
    stop_copies: int = Field(4, ge=2)
    """Whole copies after which a cycle may stop whatever its logits…"""
    stop_span: int = Field(512, ge=128)
    """…and tokens that these cover; four times as many where there are no words, twice for near-copies."""
    stop_prose_copies: int = Field(8, ge=2)
    """Whole copies after which a cycle of prose may stop…"""
    stop_prose_span: int = Field(224, ge=64)
    """…and tokens that these cover."""
    longest_period: int = Field(4096, ge=1, le=4096)
    blank_run: int = Field(96, ge=16)
    """Tokens in a row that show nothing: white space, invisible characters."""
    recovery: int = Field(32, ge=8)
    """New tokens after which a loop has ended by itself."""


class ToolCallSettings(GuardSettings):
    """Tool calls that run away inside one generation."""

    identical_calls: int = Field(3, ge=2)
    """The same call (name and arguments) so many times is a fault; behind an ignored stop any call is one."""
    unclosed_tokens: int = Field(8192, ge=16)
    """Tokens after which a call that is still open is told of (in text, four characters count as one token)."""
    stray_closings: int = Field(8, ge=1)
    """Closing delimiters without an opening one, or opening ones without a closing one, that are a fault."""
    loops: bool = True
    """Read conversations for calls that come back turn after turn."""


class LanguageSettings(GuardSettings):
    """A language or writing system that neither the prompt nor the request asks for."""

    languages: bool = True
    """Tell languages of one writing system apart too: a model of 60 MB in memory, loaded once a process."""
    warn_evidence: float = Field(25.0, ge=5)
    """Nats against the expected language at which a turn is told as a warning…"""
    error_evidence: float = Field(60.0, ge=5)
    """…and at which it has gone on, which is an error."""
    foreign_letters: int = Field(6, ge=2)
    """Letters of a foreign writing system that are a warning…"""
    foreign_letters_error: int = Field(40, ge=4)
    """…and that are an error."""
    salad_evidence: int = Field(6, ge=2)
    """Weight at which jumps among several of them count; a change of writing system weighs 2."""
    switch_tokens: int = Field(40, ge=4)
    """Tokens in a row of a single one that count as a switch."""


class SaladSettings(GuardSettings):
    """Tokens that follow each other at random."""

    evidence: float = Field(25.0, ge=6.0)
    """Nats at which token ids count; 1.4 times as many where the tables were counted over another vocabulary. A nat
    more makes a false finding about a third rarer and comes half a token later."""
    text_evidence: float = Field(25.0, ge=6.0)
    """Nats at which text without token ids counts."""


class SamplerSettings(GuardSettings):
    """A token that the sampler may not have drawn, or too many that are hard to believe."""

    budget_microseconds: float = Field(2000.0, gt=0)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Of the sampler's arithmetic; `auto` takes the dtype of the logits that it is given."""
    false_alarm_probability: float = Field(1e-6, gt=0, lt=1)
    """Of an honest sequence ever being accused by evidence, however long it is."""
    replica_steps: float = Field(1e10, ge=1e3)
    """Steps of an honest replica between two false accusations by evidence, on average, or more."""
    measured_logits: int = Field(300_000, ge=1)
    """Logits that are read for it in one step: of sampled rows in turn, of one at least. Greedy rows are all judged."""
    redrawn_rows: int = Field(1, ge=0)
    """Sampled rows of a step that are drawn again, in turn, where the engine can."""


class RecurrenceSettings(GuardSettings):
    """A looped block whose state grows geometrically."""

    budget_microseconds_per_row: float = Field(500.0, ge=0)
    growth: float = Field(4.5, gt=1)
    """Of the change a loop makes, at a steady rate, that is told."""
    fewest_loops: int = Field(8, ge=3)
    window: int = Field(48, ge=8, le=4096)
    """Loops that growth is looked for in: a radius below growth^(1/window) is not found."""


class EmbeddingSettings(GuardSettings):
    """Embedding vectors that carry nothing."""

    budget_microseconds_per_row: float = Field(100.0, ge=0)


class SpeculationSettings(GuardSettings):
    """Accepted draft tokens of a sequence; the defaults are those that z.ai stop requests by."""

    least_length: float = Field(1.4, ge=1)
    """Tokens a verification; n-gram drafts accept less by nature: set it to 1 for these."""
    most_rate: float = Field(0.96, gt=0, le=1)
    tokens: int = Field(128, ge=8)
    """Output tokens before either counts."""


class LatencySettings(GuardSettings):
    """Late tokens; without a limit nothing is late."""

    ttft_seconds: float | None = Field(None, gt=0)
    tbt_seconds: float | None = Field(None, gt=0)
    burst: float = Field(8.0, ge=1)
    """Late tokens in a row (of ttft: sequences) that are told."""
    forgiven: float = Field(0.25, ge=0, le=1)
    """Late ones that one in time makes good."""


class DriftSettings(GuardSettings):
    """A series of measurements whose distribution changes."""

    baseline: int = Field(1000, ge=200)
    """Values before a change can be told; the baseline keeps growing afterwards."""
    requests_per_false_alarm: float = Field(2e6, gt=1)
    """Over all series together, when each gets a value a request; at least so many on average…"""
    series: int = Field(32, ge=1)
    """…as long as there are no more series than this."""
    inputs: tuple[str, ...] = ("prompt_length", "prompt_tokens", "input_length", "arrival_rate", "arrival_gap", "turns")
    """Series that users change, not the model: a change of these is told as INFO and alarms nobody."""
    tolerance: float = Field(0.0, ge=0, le=1)
    """Shift in standard deviations, and ratio of spreads above 1, that are no drift."""
    given_tolerance: float = Field(0.15, ge=0, le=1)
    """The same for a series that is judged given its input: an input does not tell all clients apart."""
    bands: int = Field(10, ge=2, le=10)
    """Of the input, within which an output is judged."""


class SiblingSettings(GuardSettings):
    """One replica, device, driver or kernel that has findings more often than the others."""

    dimensions: tuple[str, ...] = ("replica", "device", "driver", "kernel")
    accusations_a_year: float = Field(1.0, gt=0)
    """False ones that are expected in a year of the fleet, at most, over all dimensions and kinds together."""
    members: int = Field(64, ge=2)
    """Of a dimension; further ones are not judged."""
    kinds: int = Field(8, ge=1)
    """Kinds of finding that are compared, the first ones that occur."""
    exact_kinds: tuple[str, ...] = ("logits.nonfinite", "token.impossible", "sampler.inconsistent", "kv.integrity")
    """One finding accuses."""
    interval_seconds: float = Field(60.0, gt=0)
    """Over which shares of the requests are taken."""


class GuardsSettings(Section):
    """`[guards]`: one table a guard, by the guard's name."""

    maximum_retries: int = Field(1, ge=0, le=16)
    """Retries of one sequence; after these it is stopped."""
    warm_up_steps: int = Field(64, ge=0)
    """Steps in which a guard's budget is not yet enforced."""
    overruns: int = Field(10, ge=1)
    """Overruns in a row after which a guard is switched off."""
    nonfinite: NonFiniteSettings = Field(default_factory=NonFiniteSettings)
    uniform: UniformSettings = Field(default_factory=UniformSettings)
    magnitude: MagnitudeSettings = Field(default_factory=MagnitudeSettings)
    impossible_token: ImpossibleTokenSettings = Field(default_factory=ImpossibleTokenSettings)
    sampler: SamplerSettings = Field(default_factory=SamplerSettings)
    recurrence: RecurrenceSettings = Field(default_factory=RecurrenceSettings)
    embeddings: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    speculation: SpeculationSettings = Field(default_factory=SpeculationSettings)
    latency: LatencySettings = Field(default_factory=LatencySettings)
    ignored_stop: IgnoredStopSettings = Field(default_factory=IgnoredStopSettings)
    repetition: RepetitionSettings = Field(default_factory=RepetitionSettings)
    tool_calls: ToolCallSettings = Field(default_factory=ToolCallSettings)
    salad: SaladSettings = Field(default_factory=SaladSettings)
    language: LanguageSettings = Field(default_factory=LanguageSettings)
    drift: DriftSettings = Field(default_factory=DriftSettings)
    siblings: SiblingSettings = Field(default_factory=SiblingSettings)

    def of(self, guard: str) -> GuardSettings:
        """A guard's settings by name; a guard that has no table of its own gets the common defaults (it observes)."""
        found = getattr(self, guard, None)
        return found if isinstance(found, GuardSettings) else GuardSettings()


class BrakeSettings(Section):
    """How much guards may take from the traffic before they fall back to observing."""

    maximum_stopped_fraction: float = Field(0.01, ge=0, le=1)
    """Of the sequences in the window, by one guard."""
    minimum_stopped: int = Field(5, ge=0)
    """Stops in the window that are always allowed, however little the traffic."""
    window_seconds: float = Field(300.0, gt=0)
    maximum_quarantined_fraction: float = Field(0.02, ge=0, le=1)
    """Of the KV blocks; beyond it a quarantine becomes a warning."""


class LogitsSettings(Section):
    """How much is measured of each row of raw logits."""

    level: Literal["auto", "screen", "full"] = "auto"
    """`screen`: non-finite, extrema. `full`: entropy, margin and fingerprint too (replay compares these)."""
