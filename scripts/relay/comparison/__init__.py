"""The comparison stage: from every run's records to tables, a report, and what was found in a sentence."""
