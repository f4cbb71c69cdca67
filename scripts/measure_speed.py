"""What a step of a setting takes: python scripts/measure_speed.py --spec run.json --output speed.json."""

import json

from relay.base import entry, options
from relay.base.files import write_json
from relay.spec.job import Job
from relay.spec.run import Run
from relay.training.speed import measure


def main() -> int:
    """Parse the command line, measure, and write the speed."""
    parser = options.parser(__doc__, "spec", "output", "attempt", "results")
    given = parser.parse_args()
    specification = json.loads(given.spec.read_text(encoding="utf-8"))  # once: it may be a pipe
    run, job = Run.from_dict(specification), Job.of(specification)
    write_json(given.output, measure(run, given.results, job=job, attempt=given.attempt))
    return 0


if __name__ == "__main__":
    entry.run(main)
