"""What everything else stands on: other programs, digests, quoting, configuration, files of runs, words for users."""
