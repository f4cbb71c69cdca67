"""The comparison stage: from the records of all runs to tables, a report, and a finding in a few sentences."""
