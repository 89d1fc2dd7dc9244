"""What recipes compose: the settings and numbers of papers, networks, rows, problems."""
