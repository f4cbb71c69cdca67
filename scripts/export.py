"""The final model of a finished run as safetensors: python scripts/export.py --run ID --output FILE."""

from relay.base import entry, options


def main() -> int:
    """Parse the command line and write the file."""
    parser = options.parser(__doc__, "run", "results", "output")
    given = parser.parse_args()
    from relay.export.model_file import export  # with torch

    told = export(given.run, given.results, given.output)
    print(f"{given.output}: {told['task']} after step {told['step']}, {given.output.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    entry.run(main)
