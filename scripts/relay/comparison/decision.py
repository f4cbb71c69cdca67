"""How the answer is decided."""

from collections.abc import Sequence
from dataclasses import replace

from relay.base.grouped import grouped
from relay.comparison import choice, doubts
from relay.comparison.answer import Answer, Certainty
from relay.comparison.candidates import Candidate, charged, rules_of
from relay.comparison.columns import Row, unit_of
from relay.comparison.inputs import Inputs
from relay.comparison.setting_result import SettingResult, setting_results, stated_goal
from relay.spec.labels import training_of


def answers(inputs: Inputs, rows: Sequence[Row]) -> list[Answer]:
    """The answer for all that is trained in the comparison. `rows` are those of `comparison_rows(inputs)`.

    Of one task's, that with the lowest test loss comes first: what has learnt most is what people train in the end.
    """
    results = setting_results(inputs, rows)
    alike = grouped(results, lambda each: each.row["trained"])
    in_order = sorted(
        (_answer(members, inputs) for members in alike.values()), key=lambda each: (each.task, each.test_loss)
    )
    first = next((each for each in in_order if each.best), None)
    return [
        each if each is first else replace(each, script=f"recommendation-{each.file_name}.sbatch") for each in in_order
    ]


def _answer(results: Sequence[SettingResult], inputs: Inputs) -> Answer:
    row = results[0].row
    rules = rules_of(inputs.margin, inputs.rules, [charged(each) for each in results if each.repeats])
    target_accuracy = inputs.config.get("target_accuracy")
    measured = [Candidate(x.row, x.label, x.repeats, rules) for x in results if choice.may_be_recommended(x.row)]
    several = len({training_of(each.run) for each in measured}) > 1
    goal = stated_goal(measured, target_accuracy) if several else None
    measured = [replace(each, goal=goal) for each in measured]
    why_beyond = {id(each): choice.beyond(each) for each in measured}
    candidates = [each for each in measured if not why_beyond[id(each)]]
    beyond = [each for each in measured if why_beyond[id(each)]]
    over = [choice.LeftOut(each.name, "beyond a limit", why_beyond[id(each)]) for each in beyond]
    answer = Answer(
        task=row["task"],
        trained=row["trained"],
        unit=unit_of(each.row for each in results),
        rules=rules,
        goal=goal,
        certainty="none",
        left_out=[*choice.left_out(results), *over],
        beyond=beyond,
        only_on_cpu=choice.only_on_cpu(results),
    )
    if not candidates:
        return answer
    best = choice.chosen(candidates)
    rest = [each for each in candidates if each is not best]
    others = [choice.compared(best, each, candidates) for each in rest]
    next_best = choice.chosen(rest) if rest else None
    by_intervals = _certainty(others)
    pairs = [(beside, each.other) for each in others for beside in (best, each.against)]
    reasons = [
        *([doubts.Doubt("another training", {})] if several and not goal else []),
        *([] if goal and target_accuracy else doubts.learns_more(best, candidates)),
        *doubts.neighbours(candidates),
        *doubts.places(pairs),
        *doubts.few_repeats(pairs),
        *doubts.near_limits(best, measured),
        *doubts.decisive(best, candidates),
        *doubts.hardly_timed(candidates),
    ]
    return replace(
        answer,
        best=best,
        certainty="likely" if by_intervals == "winner" and reasons else by_intervals,
        doubts=reasons,
        least_minutes=inputs.rules.get("least_minutes") or 0,
        site_flags=inputs.rules.get("site_flags") or (),
        others=others,
        runner_up=next((each for each in others if each.other is next_best), None),
    )


def _certainty(others: Sequence[choice.Compared]) -> Certainty:
    """As the intervals tell it."""
    relations = {each.relation for each in others}
    if "unclear" in relations:
        return "unclear"
    return "tie" if "tie" in relations else "winner" if others else "alone"
