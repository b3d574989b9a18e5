"""What people see on a terminal, in a file or in a CI log: tables, progress, summaries."""
