"""What fronts say: requests that come, are refused at the door, are given up, or lose their front."""

from triton_backend.contract.events import Arrival, Cancel
from triton_backend.contract.plan import Plan
from triton_backend.contract.reasons import DropReason
from triton_backend.serving.gateway.addresses import Front, drop_frame
from triton_backend.serving.gateway.admission import Admission, Refused
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.state import Books
from triton_backend.serving.transport.wire import NONE, ArrivalBody


class Intake:
    """The door of the gateway: keeps out what is known already and what overload would spoil."""

    def __init__(self, plan: Plan, books: Books, counters: GatewayCounters) -> None:
        self._books = books
        self._counters = counters
        self.use(plan)

    def use(self, plan: Plan) -> None:
        """From now on requests are for the models of this plan."""
        self._models = {model.name: i for i, model in enumerate(plan.models)}
        self._admissions = [Admission(model) for model in plan.models]

    def arrival(self, front: Front, message: ArrivalBody, now_us: int, tag: int = 0) -> None:
        """A request, its express slot of the plan of `tag`; dropped where no plan has its model.

        Raises:
            InputError: its number is none that a front counts to.
        """
        books = self._books
        local, deadline_us, samples, express_slot, _ = message
        model = self._models.get(front.model)
        self._counters.offered[front.model] += 1
        if model is None:
            books.post(front, drop_frame(local, DropReason.MODEL_REMOVED, deadline_us))
            return
        number = books.number_of(front, local)
        if number in books.requests:
            return  # told again after a reconnection
        now_us = books.at(now_us)
        if not self._admissions[model].admits(samples, deadline_us, now_us):
            self._refuse(front, message, model, now_us)
            return
        books.requests.add(number)
        if express_slot != NONE:
            books.express.add(number, model, message, tag)
        books.tell(
            Arrival(
                now_us=now_us,
                request_id=number,
                model=model,
                deadline_us=deadline_us,
                samples=samples,
            )
        )

    def _refuse(self, front: Front, message: ArrivalBody, model: int, now_us: int) -> None:
        """Overload: the core is not told of what not even an ideal server could answer in time."""
        self._counters.dropped[front.model, DropReason.OVERLOAD.text] += 1
        local, deadline_us, samples, *_ = message
        refused = Refused(now_us=now_us, model=model, deadline_us=deadline_us, samples=samples)
        self._books.watch(refused, ())
        dropped = drop_frame(
            local,
            DropReason.OVERLOAD,
            deadline_us,
            best_finish_us=self._admissions[model].best_finish_us(now_us),
            queue_position=self._books.queue_lengths()[model],
        )
        self._books.post(front, dropped)

    def cancel(self, front: Front, local: int, now_us: int) -> None:
        """The client of a request gave up.

        Raises:
            InputError: its number is none that a front counts to.
        """
        number = self._books.number_of(front, local)
        if number in self._books.requests:
            self._books.tell(Cancel(now_us=self._books.at(now_us), request_id=number))

    def front_lost(self, front: Front, now_us: int) -> None:
        """A front is gone: nobody waits for its requests any more."""
        for number in self._books.numbers_of(front):
            self._books.tell(Cancel(now_us=self._books.at(now_us), request_id=number))
