"""What the proxy traces: each connect and each borrow, with their steps, and each session once it is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.trace_export import Span, Traces
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.proxy.roster import WorkerView
from pwgrid.proxy.select.queue import ClientGone, Ticket
from pwgrid.registry import records


@dataclass(frozen=True, slots=True)
class ClientTraces:
    """Traces the clients of one proxy. `with_names`: spans have what clients call their runs."""

    traces: Traces
    with_names: bool

    def session_over(self, worker_id: str, told: Mapping[str, Any]) -> None:
        """A worker tells of the end of a session that was handed off with a `traceparent`."""
        failed = told["status"] == SessionStatus.FAILED
        self.traces.was(
            "session",
            told["trace"],
            (told["startedAt"], told["endedAt"]),
            {
                "pwgrid.browser_type": told["browserType"],
                "pwgrid.pool": told["pool"],
                "pwgrid.worker_id": worker_id,
                "pwgrid.session_id": told["session"],
                "pwgrid.lease_id": told["lease"],
                "pwgrid.outcome": told["status"],
                "pwgrid.reason": told["reason"],
                "pwgrid.bytes_in": told["bytesIn"],
                "pwgrid.bytes_out": told["bytesOut"],
                **_names(told["told"], with_names=self.with_names),
            },
            told["reason"] if failed else None,
        )


class Attempt:
    """One client's way to a slot: a span from its head, or its request, to the answer."""

    def __init__(self, span: Span, *, with_names: bool) -> None:
        self._span = span
        self._with_names = with_names
        self._served_at: float | None = None

    def traceparent(self) -> str:
        """What its worker gets, and says again when the session is over; empty where nobody will see its span."""
        return self._span.traceparent()

    def asks(self, ticket: Ticket) -> None:
        """It is known what the client wants."""
        names = _names(ticket.fields, with_names=self._with_names)
        self._span.say({"pwgrid.browser_type": ticket.browser_type, "pwgrid.pool": ticket.pool, **names})

    def asks_of(self, worker: WorkerView | None) -> None:
        """The client comes with a lease of this worker; None for one that nobody knows."""
        if worker is not None:
            self._span.say({"pwgrid.browser_type": worker.browser_type, "pwgrid.pool": worker.pool})

    def waited(self, since: float, waited_s: float, selection_s: float | None) -> None:
        """It has waited for a slot, the last `selection_s` of that for the registry; None where it got none."""
        until = since + waited_s
        selected_at = until if selection_s is None else max(since, until - selection_s)
        self._span.had("queue", since, selected_at, {})
        if selection_s is not None:
            self._span.had("selection", selected_at, until, {})

    def offered(self, step: str, since: float, until: float, worker_id: str, failure: str | None) -> None:
        """A worker was offered the client (`handoff`), or asked to keep a slot (`keep`), at `since`, and took it or not
        at `until`; `failure` is why not."""
        self._span.had(step, since, until, {"pwgrid.worker_id": worker_id}, failure)

    def served(self, worker_id: str, session_id: str, at: float | None = None) -> None:
        """This worker has it, since `at` or now: a session, or a lease by the name that it has among sessions."""
        self._served_at = at
        is_lease = session_id.startswith(records.LEASE)
        self._span.say(
            {
                "pwgrid.worker_id": worker_id,
                "pwgrid.session_id": None if is_lease else session_id,
                "pwgrid.lease_id": session_id.removeprefix(records.LEASE) if is_lease else records.lease_of(session_id),
            }
        )

    def ends(self, failure: Exception | None) -> None:
        """The client has its answer, or gets none. Sentences are left out: a client's own words may be in them."""
        status, error, at = None, None, None
        if failure is None:
            outcome, at = "served", self._served_at
        elif isinstance(failure, Refusal):
            outcome, status, error = "refused", failure.status, failure.reason.value
        elif isinstance(failure, ClientGone):
            outcome = "abandoned"
        else:
            outcome, error = "failed", type(failure).__name__
        self._span.say({"pwgrid.outcome": outcome, "error.type": error, "http.response.status_code": status})
        self._span.end(error, at=at)


@contextlib.contextmanager
def attempting(traces: ClientTraces | None, name: str, headers: Iterable[tuple[str, str]]) -> Iterator[Attempt | None]:
    """What happens in the block is one attempt of a client that has come to connect or to borrow, with these headers;
    None where nothing is traced."""
    if traces is None:
        yield None
        return
    attempt = Attempt(traces.traces.begin(name, _carrier(headers)), with_names=traces.with_names)
    try:
        yield attempt
    except Exception as failure:
        attempt.ends(failure)
        raise
    attempt.ends(None)


def _names(fields: Mapping[str, str], *, with_names: bool) -> dict[str, str | None]:
    """What a client said of its session or lease, of the fields of its record."""
    return {
        "pwgrid.label_key": fields.get(records.LABELS),
        "pwgrid.run_name": fields.get(records.NAME) if with_names else None,
        "pwgrid.run_id": fields.get(records.RUN) if with_names else None,
    }


def _carrier(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Of a client's headers, those that say what the span is part of; nothing where it does not say so once."""
    found: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for name, value in headers:
        if (known := found.get(name.lower())) is not None:
            known.append(value)
    if len(found["traceparent"]) != 1:
        return {}
    return {name: ",".join(values) for name, values in found.items()}
