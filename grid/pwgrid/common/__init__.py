"""What every process uses: logs, errors, names, tables of worker and session lives."""
