"""Sections of the configuration: tasks, browsers, the judge.

The text beneath a field is what the key's documentation says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

from msgspec import Meta

from webrl.config.rules import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Section,
    Share,
    Text,
    breach,
)
from webrl.errors import Problem
from webrl.loopback import is_loopback
from webrl.page_size import broken_page_size

LONGEST_EPISODE = 30
"""Most actions of a task that sets its own limit; a file's task with a higher one should be given
`max_steps`, so that the pixel store is sized for it."""
LARGEST_VIEWPORT = (1280, 720)
"""What a task may bring when the configuration leaves the page size to it."""
BYTES_PER_PIXEL = {"jpeg": 0.2, "png": 1.0}
"""Upper end of what busy pages take: 150 KB for a JPEG of 1280 x 720, five times that for a PNG."""
SCREENSHOT_FLOOR_BYTES = 2048
"""Headers and tables of the smallest encoded picture, with some room."""
NODE_LABEL = re.compile(r"[\w./-]+=[\w.-]+")
"""Ray's form of a label."""
ENVIRONMENT_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""Capitals only: a key that was pasted in place of the name by mistake is no such name."""

PLACEHOLDER = re.compile(r"\{[A-Z][A-Z0-9_]{0,63}\}")
"""How an address names an environment variable."""
SECRET_NAME = re.compile(r"(?i)token|key|secret|passw|auth|credential|signature")
"""Parameters of an address that hold a secret."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSection(Section):
    """One task, or one file of tasks, to train and evaluate on."""

    name: Annotated[Text, "List the names with: webrl tasks."]
    """A name that `webrl tasks` lists, such as `miniwob/click-test-2`; or a file of tasks:
    `tasks:PATH` for those of one's own, `webgym:PATH` for WebGym's format, which needs a judge."""
    split: Literal["both", "train", "test"] = "both"
    """What the tasks are for: training, the test rollout and `webrl eval`, or both."""
    max_steps: Annotated[Count, "An episode needs one action."] | None = None
    """Actions of one episode before it ends as a failure; each task's own limit when unset, which
    for `webgym:PATH` goes by difficulty (`step_limits`)."""
    test_max_steps: Annotated[Count, "Leave it out for max_steps."] | None = None
    """The same for the test rollout; `max_steps`, else each task's own limit, when unset."""
    weight: Annotated[Positive, "Remove the task to never draw it."] = 1.0
    """How often the task is drawn, relative to the others."""
    difficulties: tuple[str, ...] = ()
    """Of a file, only the tasks with one of these labels; all when empty."""
    domains: tuple[str, ...] = ()
    """Of a file, only the tasks of one of these domains; all when empty."""
    subdomains: tuple[str, ...] = ()
    """Of a file, only the tasks of one of these subdomains; all when empty."""
    sites: tuple[str, ...] = ()
    """Of a file, only the tasks on one of these hosts, such as `example.org`, or below them; all when
    empty."""
    num_tasks: Annotated[Count, "Leave it out for all."] | None = None
    """Of a file, only so many of what the other keys leave, drawn at random."""
    subset_seed: Natural = 0
    """Which ones `num_tasks` draws."""
    max_bad_share: Share = 0.01
    """Largest share of a file's lines that may be no task: they are passed over and told."""
    prefix: str = ""
    """What stands before each task's name: two files that share names can be told apart by it."""

    @property
    def is_judged(self) -> bool:
        """Whether a judge decides about the episodes."""
        return self.name.startswith("webgym:")

    @property
    def is_file(self) -> bool:
        """Whether it stands for the tasks of a file."""
        return self.name.startswith(("tasks:", "webgym:"))

    def contradictions(self) -> list[Problem]:
        """What chooses among the tasks of a file needs a file."""
        chosen = ("difficulties", "domains", "subdomains", "sites", "num_tasks", "prefix")
        wrong = [key for key in chosen if getattr(self, key)] if not self.is_file else []
        rule = "unset but for a file of tasks (tasks:PATH, webgym:PATH)"
        remedy = "Remove it, or name a file."
        return [breach(key, rule, getattr(self, key), remedy) for key in wrong]


@dataclass(frozen=True, kw_only=True, slots=True)
class SitesSection(Section):
    """Sites that shut the agent out, and those to stay away from."""

    expiry_s: Annotated[Positive, "Typical value: 43200."] = 43200.0
    """Seconds for which the tasks of a site are not drawn that was found closed: blocked, no such name,
    refused, a bad certificate. What was seen of sites is kept in the run's `sites.json`."""
    max_at_once: Annotated[Count, "Leave it out for any number."] | None = None
    """Episodes on one site that one rollout worker runs at one moment; the others wait in their slots. With
    `env.num_workers` workers a site sees that many times as many."""
    interval_s: NonNegative = 0.0
    """Least time between two openings of one site by one rollout worker, in seconds."""
    blocklist: tuple[str, ...] = ()
    """Hosts whose tasks, and those of hosts below them, are left out of training and evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLimitsSection(Section):
    """Actions of one episode by a WebGym task's difficulty; a task's `max_steps` comes before them."""

    easy: Annotated[Count, "An episode needs one action."] = 10
    """Of up to 3 facts, in training."""
    medium: Annotated[Count, "An episode needs one action."] = 20
    """Of 4 to 6 facts, in training."""
    hard: Annotated[Count, "An episode needs one action."] = 30
    """Of more facts or another label, in training."""
    test_easy: Annotated[Count, "An episode needs one action."] = 30
    """Of up to 3 facts, in evaluation."""
    test_medium: Annotated[Count, "An episode needs one action."] = 50
    """Of 4 to 6 facts, in evaluation."""
    test_hard: Annotated[Count, "An episode needs one action."] = 70
    """Of more facts or another label, in evaluation."""

    def of(self, difficulty: str | None, *, is_test: bool) -> int:
        """Return the limit of a difficulty; another label counts as hard."""
        label = difficulty if difficulty in ("easy", "medium") else "hard"
        limit: int = getattr(self, f"test_{label}" if is_test else label)
        return limit


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSection(Section):
    """Rollout workers and their browsers."""

    num_workers: Annotated[Count, "Someone must run the episodes."] = 1
    """Rollout worker processes, each with a browser of its own."""
    slots_per_worker: Annotated[Count, "Use 1 for one at a time."] = 16
    """Episodes that one worker can run at one moment."""
    cpus_per_slot: Annotated[Positive, "Typical value: 0.125."] | None = None
    """Logical CPUs that Ray sets aside for each slot of a worker; unset: a worker declares as much
    as every other process, one at most."""
    node_label: str | None = None
    """Ray label, written `name=value`, of the only machines that run browsers; any when unset."""
    user_agent: Annotated[Text, "Leave it out for Chromium's own."] | None = None
    """What sites are told of the browser; Chromium's own, which says that it is headless, when unset."""
    locale: Annotated[Text, "Typical value: en-US."] = "en-US"
    """Language that sites are asked for."""
    browsers: tuple[str, ...] = ()
    """Addresses of browsers that run elsewhere, such as `ws://...` or `http://127.0.0.1:9222`, used in
    place of one for each worker: a pool over which its slots are spread. A token is written as the
    name of an environment variable on every machine with rollout workers:
    `wss://chrome.example?token={BROWSER_TOKEN}`."""
    browser_network: Literal["guarded", "own"] = "guarded"
    """How pages of `browsers` reach the network: `guarded` through the worker, which refuses private
    addresses, with browsers on the worker's machine; `own` as the browser does, with nothing of a
    run between: whoever runs it keeps pages away from private addresses."""
    proxy: str | None = None
    """Address of a proxy through which pages reach their sites, such as `http://proxy.example:3128`;
    sites are reached directly when unset. Tasks with `allow_private` go around it."""
    proxy_credentials_env: str | None = None
    """Name of the environment variable with `USER:PASSWORD` of the proxy, on every machine with
    rollout workers; none are sent when unset."""
    proxy_resolves_names: bool = False
    """Whether the proxy looks names up, and not the worker: where the worker can not, or the proxy
    takes no addresses. Only the proxy can then keep pages away from private addresses."""
    headless: Literal["shell", "new"] | None = None
    """Kind of browser: `shell` is the headless shell, half the memory and twice as fast to start;
    `new` is a whole Chromium without a window. Unset: the first that is found, shells first."""
    viewport_width: Annotated[int, Meta(ge=16, le=8192), "Typical values: 1280 and 720."] | None = (
        None
    )
    """Width of page and screenshot in CSS pixels; each task's own when unset."""
    viewport_height: (
        Annotated[int, Meta(ge=16, le=8192), "Typical values: 1280 and 720."] | None
    ) = None
    """Height of page and screenshot in CSS pixels; each task's own when unset."""
    action_mode: Literal["coordinates", "set_of_marks"] = "coordinates"
    """How the policy says where: by a point of a grid, or by the number that the screenshot shows
    beside an element. Decides screenshots, prompt and grammar."""
    screenshot_format: Literal["png", "jpeg"] = "jpeg"
    """What the policy sees and the pixel store holds: `png` for small flat pages."""
    jpeg_quality: Annotated[int, Meta(ge=1, le=100), "Typical value: 80."] = 80
    """Quality of `jpeg` screenshots, 1 to 100."""
    reset: Literal["keep_page", "reload", "new_context"] | None = None
    """How an episode starts clean; each task's own way when unset."""
    action_timeout_s: Annotated[Positive, "Typical value: 10."] = 10.0
    """Deadline of one browser action, in seconds: input, a script, a screenshot."""
    navigation_timeout_s: Annotated[Positive, "Typical value: 15."] = 15.0
    """Deadline of opening an address, in seconds, until its document is there."""
    settle_timeout_s: Annotated[NonNegative, "Use 0 for no wait."] | None = None
    """Longest wait for a page to finish loading after an action, in seconds, 0 for none; what each
    task says when unset: 10 for those of files, none for MiniWoB."""
    episode_timeout_s: Annotated[Positive, "Typical value: 120."] = 120.0
    """Deadline of one episode, in seconds; past it the episode is a fault, not a failure. Its own
    actions may take half of it: past that it ends as a failure."""
    page_latency_s: Annotated[NonNegative, "Use 0 for none."] = 0.0
    """Mean of an artificial wait before each action, in seconds: a slow site on a fast machine."""
    page_latency_cv: Annotated[NonNegative, "Use 0 for a fixed wait."] = 1.0
    """Coefficient of variation of that wait, lognormal and fixed by task, seed and step."""
    num_train_seeds: Annotated[Count, "Typical: 100000."] = 100_000
    """Training seeds of each task; an epoch visits every task with every one of them."""
    recycle_after_episodes: Annotated[Count, "Typical: 2000."] = 2000
    """Episodes after which a browser process is replaced."""
    recycle_after_s: Annotated[Positive, "Typical value: 3600."] = 3600.0
    """Age in seconds at which a browser process is replaced."""
    recycle_above_bytes: Annotated[int, Meta(ge=1 << 28), "Typical: 4294967296."] | None = None
    """Memory of a browser with all its processes above which it is replaced and its largest page
    ended; unset: 2 GiB and 256 MiB for each slot."""

    def contradictions(self) -> list[Problem]:
        """A label is one; a viewport has two sides and a shape; a proxy is one, without a secret."""
        return [*self._browser_problems(), *self._proxy_problems(), *self._page_problems()]

    def _browser_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        for address in self.browsers:
            broken = broken_browser(address)
            if broken is not None:
                problems.append(breach("browsers", *broken, "Use e.g. ws://127.0.0.1:9222/..."))
        if problems or not self.browsers:
            return problems
        if len(set(self.browsers)) < len(self.browsers):
            remedy = "Start another browser, or name it once."
            problems.append(breach("browsers", "different ones", "one twice", remedy))
        hosts = [urlsplit(address).hostname or "" for address in self.browsers]
        away = [host for host in hosts if not is_loopback(host)]
        if self.browser_network == "guarded" and away:
            remedy = (
                "A browser there can not use the guard that refuses private addresses: run it here, "
                "or have its owner keep pages from them and set env.browser_network = 'own'."
            )
            rule = "on this machine (127.0.0.1) while env.browser_network is 'guarded'"
            problems.append(breach("browsers", rule, away[0], remedy))
        if self.browser_network == "own" and self.proxy is not None:
            remedy = "Start the browsers with --proxy-server, or leave one of the two out."
            rule = "unset while env.browser_network is 'own'"
            problems.append(breach("proxy", rule, self.proxy, remedy))
        return problems

    def _proxy_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        broken = None if self.proxy is None else broken_proxy(self.proxy)
        if broken is not None:
            problems.append(breach("proxy", *broken, "Use e.g. http://proxy.example:3128."))
        name = self.proxy_credentials_env
        if name is not None and not ENVIRONMENT_VARIABLE.fullmatch(name):
            # What stands here may be the secret itself: it is not repeated.
            rule, shown = "the name of an environment variable", f"{len(name)} other characters"
            problems.append(breach("proxy_credentials_env", rule, shown, "Use e.g. PROXY_LOGIN."))
        return problems

    def _page_problems(self) -> list[Problem]:
        label = self.node_label
        if label is not None and not NODE_LABEL.fullmatch(label):
            remedy = "Give what `ray start --labels` was given, such as browsers=true."
            return [breach("node_label", "written name=value", label, remedy)]
        width, height = self.viewport_width, self.viewport_height
        if width is not None and height is not None:
            rule = broken_page_size(width, height)
            if rule is None:
                return []
            return [breach("viewport_width", rule, f"{width} x {height}", "Use e.g. 1280 x 720.")]
        if width is height:
            return []
        rule = "set together with viewport_height, or neither"
        return [breach("viewport_width", rule, self.viewport_width, "Give both.")]

    @property
    def num_slots(self) -> int:
        """Episodes that all workers together can run at one moment."""
        return self.num_workers * self.slots_per_worker

    @property
    def most_screenshot_bytes(self) -> int:
        """Upper estimate of one stored screenshot."""
        width, height = LARGEST_VIEWPORT
        pixels = (self.viewport_width or width) * (self.viewport_height or height)
        return int(pixels * BYTES_PER_PIXEL[self.screenshot_format]) + SCREENSHOT_FLOOR_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSection(Section):
    """A vision-language model behind an OpenAI-compatible server, for `webgym:PATH` tasks."""

    url: str | None = None
    """Base address of the server, such as `https://api.example/v1`; no judge when unset."""
    model: str | None = None
    """Name of the model there; must be set with `judge.url`."""
    blocked_model: str | None = None
    """Another model for the question whether the site shut the agent out; `judge.model` when unset."""
    relevant_model: str | None = None
    """Another model for the choice of screenshots; `judge.model` when unset."""
    supported_model: str | None = None
    """Another model for the question whether the answer is shown; `judge.model` when unset."""
    fact_model: str | None = None
    """Another model for the facts of the rubric; `judge.model` when unset."""
    reference_model: str | None = None
    """Another model for the comparison with the reference answer; `judge.model` when unset."""
    instructions: str | None = None
    """Words of your own at the end of the judge's system prompt; none when unset."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, on every machine with rollout workers; no key
    is sent when unset."""
    deadline_s: Annotated[Positive, "Typical value: 120."] = 120.0
    """Limit for one verdict, retries included, in seconds; waiting for one of the `max_concurrent`
    places or for a server that is down does not count. Past it the episode is a fault."""
    max_outage_s: Annotated[NonNegative, "Typical value: 1800."] = 1800.0
    """How long episodes wait for a server that is down or overloaded, in seconds; past it they are
    faults; 0 waits for nothing beyond the retries."""
    max_waiting: Annotated[Natural, "Typical value: 64."] = 64
    """Episodes of one rollout worker that may wait for their verdict without a browser, which the next
    ones use meanwhile; further ones keep theirs. `rollout.max_head_offpolicyness` bounds all of them."""
    request_timeout_s: Annotated[Positive, "Typical value: 60."] = 60.0
    """Limit for one request, in seconds."""
    max_retries: Annotated[Natural, "Use 0 for none."] = 3
    """Requests after one that failed or was not answered in form."""
    max_concurrent: Annotated[Count, "Typical value: 8."] = 8
    """Requests of one rollout worker at one moment."""
    max_screenshots: Annotated[Count, "Typical value: 16."] = 16
    """Screenshots of one request; of more the model first picks the relevant ones."""
    max_answer_tokens: Annotated[Count, "Typical value: 8192."] | None = 8192
    """Most tokens of one answer, the reasoning in it included: an answer that this limit cuts is none,
    and is asked for again with twice as many, up to four times this; no limit is sent when `none`."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls that limit: reasoning models of some providers want the longer name."""
    temperature: Annotated[float, Meta(ge=0, le=2), "Use 0, or none to send none."] | None = 0.0
    """Sampling temperature; none is sent when `none`, as some reasoning models refuse it."""
    input_price: Annotated[NonNegative, "Use 0 where nothing is paid."] = 0.0
    """Price of a million tokens that are sent, in any currency; the metric `judge/cost` adds up."""
    output_price: Annotated[NonNegative, "Use 0 where nothing is paid."] = 0.0
    """Price of a million tokens that are answered, reasoning included, in the same currency."""
    kept_bytes: Annotated[Natural, "Use 0 to keep nothing."] = 1 << 30
    """What one rollout worker keeps of judged episodes, in bytes: evidence and verdict of the newest, in
    the run's `judged/`, for `webrl judge`."""

    def models(self) -> dict[str, str]:
        """Return which model is asked, by kind of question."""
        kinds = ("blocked", "relevant", "supported", "fact", "reference")
        return {kind: self.model_for(kind) or "" for kind in kinds}

    def model_for(self, kind: str) -> str | None:
        """Return the model that answers questions of a kind, such as `blocked` or `fact`."""
        own = {
            "blocked": self.blocked_model,
            "relevant": self.relevant_model,
            "supported": self.supported_model,
            "fact": self.fact_model,
            "reference": self.reference_model,
        }
        return own[kind] or self.model

    def contradictions(self) -> list[Problem]:
        """An address that can be asked, a model there, and no secret in either."""
        problems: list[Problem] = []
        name = self.api_key_env
        if name is not None and not ENVIRONMENT_VARIABLE.fullmatch(name):
            # What stands here may be the key itself: it is not repeated.
            rule, shown = "the name of an environment variable", f"{len(name)} other characters"
            problems.append(breach("api_key_env", rule, shown, "Use e.g. JUDGE_API_KEY."))
        if self.url is None:
            return problems
        if not (self.model and self.model.strip()):
            rule = "set together with judge.url"
            remedy = "Name a model of the server that reads images."
            problems.append(breach("model", rule, self.model, remedy))
        broken = _broken_address(self.url, has_key=name is not None)
        if broken is not None:
            problems.append(breach("url", *broken, "Use e.g. https://api.example/v1."))
        return problems


def _parsed(address: str, *schemes: str) -> tuple[SplitResult, str]:
    """Return the parts of an address, and its host.

    Raises:
        ValueError: The rule that it breaks; the address itself is not in it.
    """
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        raise ValueError("a well-formed address") from None
    if parts.scheme in schemes and parts.hostname:
        return parts, parts.hostname
    *others, last = (f"{scheme}://" for scheme in schemes)
    raise ValueError(f"an address with {', '.join(others)} or {last}")


def broken_browser(address: str) -> tuple[str, str] | None:
    """Return the rule that the address of a browser breaks, and how to show it without a secret."""
    try:
        parts, host = _parsed(address, "ws", "wss", "http", "https")
    except ValueError as error:
        return str(error), "something else"
    login = [part for part in (parts.username, parts.password) if part is not None]
    given = [value for name, value in parse_qsl(parts.query) if SECRET_NAME.search(name)]
    if not all(PLACEHOLDER.fullmatch(secret) for secret in (*login, *given)):
        rule = "an address whose secrets are names of environment variables, as {BROWSER_TOKEN}"
        return rule, host
    is_secret = bool(login or given or PLACEHOLDER.search(address))
    if is_secret and parts.scheme in ("ws", "http") and not is_loopback(host):
        return "wss:// or https:// where a secret is sent to another machine", host
    return None


def broken_proxy(url: str) -> tuple[str, str] | None:
    """Return the rule that the address of a proxy breaks, and how to show it without a secret."""
    try:
        parts, host = _parsed(url, "http", "https")
    except ValueError as error:
        return str(error), "something else"
    if parts.username is not None or parts.password is not None:
        return (
            "an address without user and password (use proxy_credentials_env)",
            host,
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return "an address of a host and a port alone", host
    return None


def _broken_address(url: str, *, has_key: bool) -> tuple[str, str] | None:
    """Return the rule that an address breaks, and how to show it without a secret."""
    try:
        parts, host = _parsed(url, "http", "https")
    except ValueError as error:
        return str(error), "something else"
    if parts.username is not None or parts.password is not None or parts.query:
        return "an address without user, password or query (use api_key_env)", host
    if has_key and parts.scheme == "http" and not is_loopback(host):
        return "https:// where a key is sent to another machine", f"http://{host}"
    return None
